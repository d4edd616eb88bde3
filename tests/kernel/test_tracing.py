"""Numbers that remember how they were computed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tilewright.graph.kernel.tracing import Number, Recipe, Trace, UntraceableError, apply, choose


def traced(function: Callable[..., object], *inputs: int) -> tuple[object, Recipe]:
    trace = Trace(inputs)
    result = function(*trace.inputs)
    value = result.value if isinstance(result, Number) else result
    return value, Recipe(trace, [trace.place(result)])


@pytest.mark.parametrize(
    "function",
    [
        lambda n, m: 2 * n + m - 1,
        lambda n, m: -(-n // 4) * m % 7,
        lambda n, m: math.prod((n, m, 3)) - abs(n - m),
        lambda n, m: max(1, min(n, m, 10)),
        lambda n, m: n * 3 if n < m else m,
        lambda n, m: len(range(n)) + (5 if 1 in (n, m) else 6),
        lambda n, m: sum(sorted((n, m), key=lambda size: -size)[:1]),
        lambda n, m: apply(math.gcd, n, m) * (2.0 * n),
        lambda n, m: choose(lambda size: size > 8, n) * 3 + m,
        lambda n, m: n // m if m else n,
    ],
)
def test_other_inputs_give_what_the_program_gives_or_nothing(function: Callable[[int, int], object]) -> None:
    for n, m in ((3, 5), (12, 4), (1, 0)):
        value, recipe = traced(function, n, m)
        assert value == function(n, m)
        assert recipe.follow([n, m]) == [value]
        for others in ((1, 1), (2, 9), (9, 2), (30, 4), (3, 7), (5, 0)):
            found = recipe.follow(others)
            assert found is None or found == [function(*others)]


def test_the_order_of_factors_makes_no_other_step() -> None:
    trace = Trace([4, 5])
    n, m = trace.inputs
    assert (n * m).place == (m * n).place
    assert (n + 3).place == (3 + n).place
    assert (n - m).place != (m - n).place
    assert n == m + -1
    assert (n == 3) is False
    assert Recipe(trace, [(n * m).place]).follow([6, 7]) == [42]


def test_a_comparison_is_a_condition() -> None:
    _, recipe = traced(lambda n: n * 2 if n < 10 else n, 4)
    assert recipe.follow([9]) == [18]
    assert recipe.follow([10]) is None


def test_a_number_that_is_used_as_such_is_a_condition() -> None:
    _, recipe = traced(lambda n, m: int(n) + m, 4, 1)
    assert recipe.follow([4, 6]) == [10]
    assert recipe.follow([5, 6]) is None


def test_a_number_is_no_key_and_ends_with_its_trace() -> None:
    trace = Trace([4])
    with pytest.raises(UntraceableError):
        {trace.inputs[0]: 1}
    Recipe(trace, [0])
    with pytest.raises(UntraceableError):
        trace.inputs[0] + 1
