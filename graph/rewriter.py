"""Changing a graph: every mutation goes through a `Rewriter`, which tells its listeners what happened.

A driver listens to know what to visit again; a trace listens to record what a rule did.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .builder import OpBuilder
from .core import AttributeValue, Block, Operation, Value
from .dims import FreshSymbols
from .location import UNKNOWN, Location, fuse
from .types import Type


class RewriteListener:
    """What can be heard; override what you need."""

    def created(self, op: Operation) -> None:
        """`op` was inserted."""

    def erased(self, op: Operation) -> None:
        """`op` is about to be erased."""

    def modified(self, op: Operation) -> None:
        """An operand, attribute or result of `op` changed in place."""

    def replaced(self, old: Value, new: Value) -> None:
        """All uses of `old` are about to become uses of `new`."""


class Rewriter:
    """Mutates one module's graph. `rule` names who does it, for locations and traces."""

    def __init__(self, symbols: FreshSymbols, rule: str = "", listeners: Iterable[RewriteListener] = ()) -> None:
        self.symbols = symbols
        self.rule = rule
        self.listeners = list(listeners)
        self.changed = False

    # ---- building ------------------------------------------------------------------------------------------------

    def before(self, op: Operation, location: Location | None = None) -> OpBuilder:
        """A builder that inserts before `op`; new operations say that they stem from `op` (or `location`)."""
        if op.parent is None:
            raise ValueError(f"{op!r} is in no block")
        where = location if location is not None else (fuse(self.rule, [op.location]) if self.rule else op.location)
        return OpBuilder(op.parent, self.symbols, op, where, self.on_create)

    def at_start(self, block: Block, location: Location = UNKNOWN) -> OpBuilder:
        """A builder that inserts before the first operation of `block`."""
        return OpBuilder(block, self.symbols, block.first, location, self.on_create)

    def on_create(self, op: Operation) -> None:
        """Tell everybody of an operation that was inserted; builders made elsewhere call it."""
        self.changed = True
        for listener in self.listeners:
            listener.created(op)

    # ---- changing ------------------------------------------------------------------------------------------------

    def replace(self, op: Operation, values: Sequence[Value | None]) -> None:
        """Replace all results of `op` by `values` (None for an unused result) and erase it."""
        if len(values) != len(op.results):
            raise ValueError(f"{op!r} has {len(op.results)} results, got {len(values)} replacements")
        for old, new in zip(op.results, values, strict=True):
            if new is not None:
                self.replace_uses(old, new)
        self.erase(op)

    def replace_uses(self, old: Value, new: Value) -> None:
        """Make every use of `old` a use of `new`; a new unnamed value inherits `old`'s name and declaration."""
        if old is new:
            return
        for listener in self.listeners:
            listener.replaced(old, new)
        if new.name is None:
            new.name = old.name
            if new.info is None and not old.is_argument:
                new.info = old.info  # that of an argument is about the interface
        for use in old.uses:
            self.set_operand(use.user, use.position, new)

    def erase(self, op: Operation) -> None:
        """Remove an operation whose results are unused."""
        for listener in self.listeners:
            listener.erased(op)
        op._erase()
        self.changed = True

    def set_operand(self, op: Operation, index: int, value: Value | None) -> None:
        op._set_operand(index, value)
        self._modified(op)

    def set_operands(self, op: Operation, values: Iterable[Value | None]) -> None:
        op._set_operands(values)
        self._modified(op)

    def set_attribute(self, op: Operation, name: str, value: AttributeValue) -> None:
        """Set an attribute; None removes it."""
        if value is None:
            op.attributes.pop(name, None)
        else:
            op.attributes[name] = value
        self._modified(op)

    def set_type(self, value: Value, type: Type) -> None:
        if value.type is not type:
            value.type = type
            if value.producer is not None:
                self._modified(value.producer)

    def keep_results(self, op: Operation, keep: Sequence[int]) -> None:
        """Drop all results but those at positions `keep`; the dropped ones must be unused."""
        op._drop_results(keep)
        self._modified(op)

    def add_argument(self, block: Block, type: Type, name: str | None = None) -> Value:
        """A new last argument of `block`. Whoever passes arguments to the block must be changed too."""
        self.changed = True
        return block._add_argument(type, name)

    def remove_argument(self, block: Block, index: int) -> None:
        """Remove an unused argument of `block`."""
        block._remove_argument(index)
        self.changed = True

    def move(self, op: Operation, before: Operation) -> None:
        """Move `op` in front of `before`, possibly into another block; the caller keeps definitions before uses."""
        if before.parent is None:
            raise ValueError(f"{before!r} is in no block")
        if op.parent is not None:
            op.parent._unlink(op)
        before.parent._insert(op, before)
        self.changed = True

    def inline_block(self, block: Block, arguments: Sequence[Value], before: Operation) -> list[Value]:
        """Move the operations of `block` in front of `before`, with its arguments replaced; return what it returned."""
        for argument, value in zip(block.arguments, arguments, strict=True):
            self.replace_uses(argument, value)
        returned = list(block.returned)
        for op in list(block):
            if op.is_terminator:
                self.erase(op)
            else:
                self.move(op, before)
        return returned

    def _modified(self, op: Operation) -> None:
        self.changed = True
        for listener in self.listeners:
            listener.modified(op)
