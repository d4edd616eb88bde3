"""How many operations stand for one, if it is written as its parts or as the operator of the standard.

What such a form makes is built in a block of its own and erased again, so that nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from .builder import OpBuilder
from .core import Block, Operation, Value
from .diagnostics import TypeInferenceError

if TYPE_CHECKING:
    from .dims import FreshSymbols

# What makes operations that stand for one: a definition's `decompose` or `standard_form`.
Form: TypeAlias = Callable[[Operation, OpBuilder], "Sequence[Value | None] | None"]


def size_of_form(op: Operation, form: Form, symbols: FreshSymbols) -> int | None:
    """How many nodes `form` makes of `op`; None if it has no answer."""
    block = Block()
    try:
        values = form(op, OpBuilder(block, symbols, location=op.location))
        return None if values is None else sum(made.name != "const" for made in block)
    except TypeInferenceError:
        return None
    finally:
        discard(block)


def is_shorter_in_standard(op: Operation, symbols: FreshSymbols) -> bool:
    """Whether the operator of the standard, and what makes its operands, take fewer nodes than the parts of `op`."""
    size = size_of_form(op, op.definition.standard_form, symbols)
    if size is None:
        return False
    parts = size_of_form(op, op.definition.decompose, symbols)
    return parts is None or size < parts


def discard(block: Block) -> None:
    """Erase the operations of a block that nobody needs."""
    for made in reversed(list(block)):
        made._erase()
