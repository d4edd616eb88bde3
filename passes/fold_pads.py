"""fold-pads: let Conv and pools do the padding that a Pad before them does. Level onnx.

Conv pads with zeros, MaxPool with -inf, AveragePool with zeros that count if `count_include_pad` says so: three
meanings of padding, and a Pad is only folded where its own value has the same one.

Invariant: only spatial axes are padded, by constant, non-negative amounts, and nobody else uses the padded tensor.

    %0 = pad %x, [0, 0, 1, 1, 0, 0, 1, 1] : f32[n, 3, 34, 34]
    %1 = conv %0, %w : f32[n, 8, 32, 32]                      ->      %1 = conv %x, %w {pads=[1, 1, 1, 1]} : ...
"""

from __future__ import annotations

import numpy as np

from ..graph.builder import OpBuilder
from ..graph.core import Operation, Value
from .base import RulePass
from .pattern import PatternBuilder, PatternValue
from .rules import Match, Mismatch, Rule, Verdict


class PadIntoWindow(Rule):
    """conv(pad(x)) -> conv(x) with larger pads, likewise for conv_integer, average_pool, lp_pool and max_pool"""

    def match(self, p: PatternBuilder, x: PatternValue) -> PatternValue:
        pad = p.pad(x, p.const(), p.optional(p.const()), p.optional(p.const()))
        result: PatternValue = p.op(("conv", "conv_integer", "average_pool", "lp_pool", "max_pool"), pad, p.variadic())
        return result

    def when(self, m: Match) -> Verdict:
        pads = _merged(m)
        return pads if isinstance(pads, Mismatch) else True

    def build(self, b: OpBuilder, m: Match) -> Value:
        root = m.root
        pads = _merged(m)
        assert isinstance(pads, tuple)
        attributes = {**root.attributes, "pads": pads}
        attributes.pop("auto_pad", None)
        if root.name == "average_pool":
            attributes["count_include_pad"] = 1
        return b.create(root.definition, [m.x, *root.operands[1:]], attributes, outputs=len(root.results)).results[0]


def _merged(m: Match) -> tuple[int, ...] | Mismatch:
    """The pads of the window operator and the Pad together, or why they cannot be added."""
    root, pad = m.root, m.matched("pad")
    spatial = _spatial_pads(m, pad)
    if isinstance(spatial, Mismatch):
        return spatial
    if root.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return m.fail("the pads depend on the size of the padded tensor", root)
    if len(root.results) > 1:
        return m.fail("its indices refer to the padded tensor", root)
    own = tuple(root.attr("pads") or (0,) * len(spatial))
    if root.attr("auto_pad", "NOTSET") == "VALID":
        own = (0,) * len(spatial)
    refusal = _value_differs(m, root, pad, own)
    if refusal is not None:
        return refusal
    total = tuple(a + b for a, b in zip(own, spatial, strict=True))
    if root.name in ("average_pool", "max_pool", "lp_pool"):
        # A window that sees only padding has no maximum, and ONNX Runtime refuses such pads.
        kernel = root.attr("kernel_shape")
        if any(amount >= size for amount, size in zip(total, (*kernel, *kernel), strict=True)):
            return m.fail("the pads reach the size of the window", root)
        if root.attr("ceil_mode", 0):
            return m.fail("ceil_mode lets windows reach beyond the padding", root)
    return total


def _value_differs(m: Match, root: Operation, pad: Operation, own: tuple[int, ...]) -> Mismatch | None:
    """Why the value that Pad writes is not the one that the window operator pads with; None if it is."""
    value = pad.input(2)
    if value is not None and m.data(value) is None:
        return m.fail("the padding value is not a constant", value)
    number = 0.0 if value is None else float(m.scalar(value))
    if root.name == "max_pool":
        return None if np.isneginf(number) else m.fail("MaxPool pads with -inf, not with that value", root)
    if root.name == "conv_integer":
        zero = 0 if root.input(2) is None else m.scalar(root.input(2))
        return None if number == zero else m.fail("ConvInteger pads with its zero point, not with that value", root)
    if number != 0.0:
        return m.fail(f"{root.op_type} pads with zeros, not with that value", root)
    if root.name == "average_pool" and any(own) and not root.attr("count_include_pad", 0):
        return m.fail("its own padding does not count in the average, the Pad's does", root)
    return None


def _spatial_pads(m: Match, pad: Operation) -> tuple[int, ...] | Mismatch:
    """Begins and ends for the spatial axes, in the order that `pads` attributes have."""
    rank = m.rank(m.x)
    amounts = m.constant(pad.input(1))
    axes = m.constant(pad.input(3)) if pad.input(3) is not None else None
    if pad.attr("mode", "constant") != "constant":
        return m.fail("it does not pad with a constant", pad)
    if rank is None or rank < 3 or amounts is None or (pad.input(3) is not None and axes is None):
        return m.fail("the padded axes are not known", pad)
    full = np.zeros((2, rank), np.int64)
    full[:, slice(None) if axes is None else axes.astype(np.int64)] = amounts.reshape(2, -1)
    if (full < 0).any():
        return m.fail("it crops", pad)
    if full[:, :2].any():
        return m.fail("it pads the batch or the channels", pad)
    return tuple(int(amount) for amount in full[:, 2:].ravel())


class FoldPads(RulePass):
    """Fold Pad into the convolution or pool after it."""

    name = "fold-pads"
    rules = (PadIntoWindow,)
