"""The registry of rules: `gradient_of` for adjoints, `parts_of` for what an operator consists of when differentiated.

@gradient_of("Tanh")
def tanh(op, grads, b):
    y = op.results[0]
    return [b.mul(grads[0], b.sub(1.0, b.mul(y, y)))]

@parts_of("GlobalAveragePool")
def global_average_pool(op, b):
    return [b.reduce_mean(op.operands[0], spatial_axes(op), keepdims=1)]
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from ..core import Operation, Value
    from ..opdef import OpDefinition
    from .builder import GradientBuilder


QUANTIZED = "train the model in floats, and quantize it afterwards"


class Refusal(NamedTuple):
    """In the place of an adjoint: the derivative exists or may exist, but nobody here can build it, and why."""

    reason: str


Adjoint: TypeAlias = "Value | Refusal | None"
Rule: TypeAlias = "Callable[[Operation, Sequence[Value | None], GradientBuilder], Sequence[Adjoint]]"
Parts: TypeAlias = "Callable[[Operation, GradientBuilder], Sequence[Value | None] | None]"

_Function = TypeVar("_Function", bound="Callable[..., object]")
_Key: TypeAlias = tuple[str, str]
_rules: dict[_Key, Rule] = {}
_parts: dict[_Key, Parts] = {}
_FAMILIES = (
    "attention", "control", "convolution", "elementwise", "indexing", "losses", "matmul", "movement", "normalization",
    "pooling", "recurrent", "reduction", "regions", "resample", "shapes",
)  # fmt: skip
_loaded: list[str] = []


def gradient_of(*names: str, domain: str = "") -> Callable[[_Function], _Function]:
    """Function decorator: the rule of these operators. Raises ValueError if one of them has a rule already."""
    return _registering(_rules, names, domain)


def parts_of(*names: str, domain: str = "") -> Callable[[_Function], _Function]:
    """Function decorator: `(op, builder) -> results`, made of operations that can be differentiated.

    None in the place of the results: not in this case. Raises ValueError if an operator has parts already.
    """
    return _registering(_parts, names, domain)


def find_rule(definition: OpDefinition) -> Rule | None:
    """The registered rule of an operator in its form of today."""
    _load()
    return None if definition.version is not None else _rules.get((definition.domain, definition.op_type))


def find_parts(definition: OpDefinition) -> Parts | None:
    """The registered parts of an operator in its form of today."""
    _load()
    return None if definition.version is not None else _parts.get((definition.domain, definition.op_type))


def _registering(
    table: dict[_Key, Callable[..., object]] | dict[_Key, Rule] | dict[_Key, Parts], names: Sequence[str], domain: str
) -> Callable[[_Function], _Function]:
    def register(function: _Function) -> _Function:
        for name in names:
            if (domain, name) in table:
                raise ValueError(f"there is a derivative of {domain or 'ai.onnx'}.{name} already")
            table[domain, name] = function  # type: ignore[assignment]
        return function

    return register


def _load() -> None:
    """Import the families once."""
    while len(_loaded) < len(_FAMILIES):
        name = _FAMILIES[len(_loaded)]
        _loaded.append(name)
        importlib.import_module(f".{name}", __package__)
