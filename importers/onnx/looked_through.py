"""Operations that are not written because only decompositions read them, and those look through them.

The parts of an Attention, say, need the transposed keys. Where the keys come from a Transpose, one other Transpose of
what that one reads does; then nobody needs the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...graph.builder import OpBuilder
from ...graph.core import Block, Operation, Value
from ...graph.diagnostics import TypeInferenceError
from ...graph.dims import FreshSymbols


def looked_through(
    block: Block, symbols: FreshSymbols, form_of: Callable[[Operation], Callable[..., Sequence[Value] | None] | None]
) -> set[Operation]:
    """The operations of `block` that nobody will need; `form_of` gives what an operation will be made of."""
    used: set[Value] = set()
    decomposed: set[Operation] = set()
    for op in block:
        form = form_of(op) if getattr(op.definition, "looks_through", False) else None
        if form is not None:
            found = _read_by_parts(op, form, symbols)
            if found is not None:
                used |= found
                decomposed.add(op)
    if not decomposed:
        return set()
    unneeded = set(decomposed)
    for op in reversed(block):
        if op.name == "const" or op.regions or not op.definition.is_pure or not _is_used(op):
            continue
        if all(result not in used and all(use.user in unneeded for use in result.uses) for result in op.results):
            unneeded.add(op)
    return unneeded - decomposed


def _is_used(op: Operation) -> bool:
    return any(result.use_count for result in op.results)


def _read_by_parts(
    op: Operation, form: Callable[..., Sequence[Value] | None], symbols: FreshSymbols
) -> set[Value] | None:
    """The values outside that the operations read which `form` makes of `op`; None if there are none."""
    scratch = Block()
    try:
        values = form(op, OpBuilder(scratch, symbols, location=op.location))
        if values is None:
            return None
        read = {operand for made in scratch for operand in made.operand_values}
        return read.union(values)
    except TypeInferenceError:
        return None
    finally:
        for made in reversed(scratch):
            made._erase()
