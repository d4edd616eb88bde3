"""The registry of lowerings: what an operator of ONNX is in kernels.

@lowers("Transpose")
def transpose(op, k):
    perm = op.attr("perm")
    return [k.transpose(op.operands[0], perm, op.result.type)]

A rule returns the results, or None: not in this case. Elementwise operators need none, their bodies say it. What has
neither is lowered by way of its decomposition if it has one, else it stays as it is.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from ..core import Operation, Value
    from ..opdef import OpDefinition
    from .builder import KernelBuilder

Lowering: TypeAlias = "Callable[[Operation, KernelBuilder], Sequence[Value] | None]"

_Function = TypeVar("_Function", bound="Callable[..., object]")
_rules: dict[tuple[str, str], Lowering] = {}
_FAMILIES = (
    "attention", "casts", "convolution", "elementwise", "gradients", "indexing", "matmul", "movement", "normalization",
    "quantization", "recurrent", "reduction", "sampling",
)  # fmt: skip
_loaded: list[str] = []
_deciding: dict[tuple[str, str], tuple[int, ...]] = {
    ("", name): (1,) for name in (
        "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL1", "ReduceL2",
        "ReduceLogSum", "ReduceLogSumExp", "Squeeze", "Unsqueeze", "Trilu", "OneHot", "AffineGrid",
    )
} | {
    ("", "Range"): (0, 1, 2), ("", "ConstantOfShape"): (0,), ("", "DFT"): (1, 2), ("", "STFT"): (1, 3),
    ("", "Col2Im"): (1, 2), ("", "MaxUnpool"): (2,), ("", "HannWindow"): (0,), ("", "HammingWindow"): (0,),
    ("", "BlackmanWindow"): (0,), ("", "MelWeightMatrix"): (0, 1, 2, 3, 4), ("", "Dropout"): (1, 2),
}  # fmt: skip


def deciding_operands(definition: OpDefinition) -> tuple[int, ...]:
    """The operands whose elements decide which kernels an operation becomes: axes, depths, sizes."""
    return _deciding.get((definition.domain, definition.op_type), ())


def lowers(*names: str, domain: str = "") -> Callable[[_Function], _Function]:
    """Function decorator: the lowering of these operators. Raises ValueError if one of them has one already."""

    def register(function: _Function) -> _Function:
        for name in names:
            if (domain, name) in _rules:
                raise ValueError(f"there is a lowering of {domain or 'ai.onnx'}.{name} already")
            _rules[domain, name] = function  # type: ignore[assignment]
        return function

    return register


def find_lowering(definition: OpDefinition) -> Lowering:
    """The lowering of an operator: the rule registered for it, or that of elementwise operators."""
    from .elementwise import lower_elementwise

    while len(_loaded) < len(_FAMILIES):
        _loaded.append(_FAMILIES[len(_loaded)])
        importlib.import_module(f".{_loaded[-1]}", __package__)
    if definition.version is not None:
        return lower_elementwise
    return _rules.get((definition.domain, definition.op_type), lower_elementwise)
