"""Operators in simpler ones of ONNX, which are lowered in their turn.

@expands("Hardmax")
def hardmax(op, b):
    ...
    return [b.where(hit, 1.0, 0.0)]

Such a function takes an `OpBuilder` and returns the results, or None: not in this case. It comes before the operator's
own decomposition.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from ..builder import OpBuilder
    from ..core import Operation, Value

Expansion: TypeAlias = "Callable[[Operation, OpBuilder], Sequence[Value | None] | None]"

_Function = TypeVar("_Function", bound="Callable[..., object]")
_expansions: dict[tuple[str, str], Expansion] = {}
_FAMILIES = ("expand_training", "expand_windows", "expand_linear", "expand_classical", "expand_rest")
_loaded: list[str] = []


def expands(*names: str, domain: str = "") -> Callable[[_Function], _Function]:
    """Function decorator: the expansion of these operators."""

    def register(function: _Function) -> _Function:
        for name in names:
            _expansions[domain, name] = function  # type: ignore[assignment]
        return function

    return register


def expand(op: Operation, builder: OpBuilder) -> Sequence[Value | None] | None:
    """The expansion of `op`, else its decomposition, else None."""
    while len(_loaded) < len(_FAMILIES):
        _loaded.append(_FAMILIES[len(_loaded)])
        importlib.import_module(f".{_loaded[-1]}", __package__)
    function = _expansions.get((op.definition.domain, op.definition.op_type))
    found = None if function is None or op.definition.version is not None else function(op, builder)
    return op.definition.decompose(op, builder) if found is None else found
