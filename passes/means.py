"""Means over axes, as exporters write them: ReduceMean, or a sum times 1/n or over n."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..graph.core import Value
from ..graph.dims import product
from .formulas import is_near, number_of
from .pattern import PatternBuilder, PatternValue
from .proofs import ints, normalized
from .rules import Match, Mismatch


class Mean(NamedTuple):
    """The names under which a pattern captures one mean: its axes, the factor 1/n, the divisor n."""

    axes: str
    part: str
    number: str


def mean_of(p: PatternBuilder, value: PatternValue, names: Mean) -> PatternValue:
    """The pattern of a mean of `value` that keeps its axes."""
    total = p.reduce_sum(value, p.const(names.axes), keepdims=1)
    result: PatternValue = p.either(
        p.reduce_mean(value, p.const(names.axes), keepdims=1),
        p.mul(total, p.const(names.part)),
        p.div(total, p.const(names.number)),
    )
    return result


def axes_of_means(m: Match, x: Value, means: Sequence[Mean]) -> list[int] | Mismatch:
    """The axes over which all `means` of tensors shaped as `x` run, sorted, counted from the front."""
    shape = m.shape(x)
    if shape is None or m.dtype(x) is None:
        return m.fail("the type of the normalized tensor is not known", x)
    found: list[list[int]] = []
    for mean in means:
        axes = ints(m, getattr(m, mean.axes))
        if axes is None:
            return m.fail("the axes are not known", m.root)
        found.append(sorted(normalized(axes, len(shape))))
    if any(axes != found[0] for axes in found):
        return m.fail("the means run over different axes", m.root)
    size = product([shape[axis] for axis in found[0]])
    for mean in means:
        part, divisor = getattr(m, mean.part), getattr(m, mean.number)
        if part is None and divisor is None:
            continue
        number = number_of(m, divisor if part is None else part, x)
        if not number or not isinstance(size, int):
            return m.fail("it is not known that the sum is divided by the number of elements", m.root)
        if not is_near(1 / number if part is None else number, 1 / size, m.dtype(x)):
            return m.fail(f"the sum of {size} elements is not divided by their number", m.root)
    return found[0]
