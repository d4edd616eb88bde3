"""Does a new value have the type of the one it replaces? Answered True, False or None (not known), never guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..graph import types
from ..graph.core import Operation, Value
from ..graph.diagnostics import TypeInferenceError
from ..graph.dims import Dim, DimExpr, is_symbol, prove_equal, symbols_of
from ..graph.infer import InferenceContext, infer_types
from ..graph.types import TensorType, Type

IsFresh = Callable[[DimExpr], bool]


def agrees(old: Type, new: Type, is_fresh: IsFresh = lambda symbol: False, created: bool = False) -> bool | None:
    """Whether a value of type `new` may stand where `old` was: True if equal or more precise, False if certainly not.

    A dim of fresh symbols (those that inference made up for the new operations) says nothing, so it does not object.
    `created`: the value is a new operation's, whose dims may refine an unnamed symbol (`?3`) of the old type; an
    existing value must be shown to have the old dims.
    """
    if old is new or old is types.UNKNOWN:
        return True
    if new is types.UNKNOWN:
        return True if created else None
    if not (isinstance(old, TensorType) and isinstance(new, TensorType)):
        return _container_agrees(old, new, is_fresh, created)
    if old.dtype is not new.dtype:
        return False
    if old.shape is None:
        return True
    if new.shape is None:
        return True if created else None
    if len(old.shape) != len(new.shape):
        return False
    verdicts = [_dim_agrees(a, b, is_fresh, created) for a, b in zip(old.shape, new.shape, strict=True)]
    return False if False in verdicts else None if None in verdicts else True


def _container_agrees(old: Type, new: Type, is_fresh: IsFresh, created: bool) -> bool | None:
    if type(old) is not type(new):
        return False
    for kind in (types.SequenceType, types.OptionalType):
        if isinstance(old, kind) and isinstance(new, kind):
            return agrees(old.element, new.element, is_fresh, created)
    if isinstance(old, types.SparseTensorType) and isinstance(new, types.SparseTensorType):
        return agrees(types.tensor(old.dtype, old.shape), types.tensor(new.dtype, new.shape), is_fresh, created)
    return False


def _dim_agrees(old: Dim, new: Dim, is_fresh: IsFresh, created: bool) -> bool | None:
    proof = prove_equal(old, new)
    if proof is not None:
        return proof
    if any(is_fresh(symbol) for symbol in symbols_of(new)):
        return True
    if created and is_symbol(old) and isinstance(old, DimExpr) and old.label.startswith("?"):
        return True
    return None


def more_precise(old: Type, new: Type, is_fresh: IsFresh) -> Type:
    """The type for a new value whose inferred type `new` agrees with `old`: old dims in place of made-up ones."""
    if new is types.UNKNOWN or not (isinstance(old, TensorType) and isinstance(new, TensorType)):
        return old if new is types.UNKNOWN else new
    if new.shape is None or old.shape is None:
        return old if new.shape is None else new
    dims = [
        a if any(is_fresh(symbol) for symbol in symbols_of(b)) else b for a, b in zip(old.shape, new.shape, strict=True)
    ]
    return types.tensor(new.dtype, dims)


def known_symbols(operations: Iterable[Operation]) -> set[DimExpr]:
    """All symbols in the types of the operands and results of `operations`."""
    found: set[DimExpr] = set()
    for op in operations:
        for value in (*op.operand_values, *op.results):
            if isinstance(value.type, TensorType):
                for dim in value.type.shape or ():
                    found.update(symbols_of(dim))
    return found


def inferred_again(ops: Sequence[Operation], values: Sequence[Value], context: InferenceContext) -> list[Type] | None:
    """The types of `values`, results of `ops` (in order), inferred from the operands that `ops` take from outside.

    Types in a graph are partly claims of the file; these follow from the operations alone. None if inference fails.
    """
    copies: list[Operation] = []
    new_of: dict[Value, Value] = {}
    try:
        for op in ops:
            if op.regions:
                return None
            operands = [None if v is None else new_of.get(v, v) for v in op.operands]
            copy = Operation(op.definition, operands, op.attributes, [types.UNKNOWN] * len(op.results))
            copies.append(copy)
            for result, type in zip(copy.results, infer_types(copy, context), strict=True):
                result.type = type
            new_of.update(zip(op.results, copy.results, strict=True))
        return [new_of[value].type for value in values]
    except TypeInferenceError:
        return None
    finally:
        for copy in reversed(copies):
            copy._drop_operands()
