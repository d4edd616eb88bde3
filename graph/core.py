"""The IR's data structure: Value, Use, Operation, Block, Region. Levels differ only in which operations are legal.

Mutable SSA with identity equality. Everything else (building, printing, parsing, cloning, verifying) is a function
in another module. Methods with a leading underscore change the graph; call them only from `Builder` and `Rewriter`,
which keep listeners informed.

A region holds exactly one block: control flow is structured (If, Loop, Scan, and the loops of lower levels), so a
branch between blocks never exists. An operation inside a region may use values of the blocks around it directly; such
captures need no argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from .location import UNKNOWN, Location
from .types import Type

if TYPE_CHECKING:
    from .module import Function
    from .opdef import OpDefinition

# What an attribute can hold: int, float, bool, str, bytes, TensorData, Type, AttributeReference, or a tuple of these.
AttributeValue: TypeAlias = Any
# Facts that no pass depends on and that only matter when the model is written back, such as `doc_string`.
Metadata: TypeAlias = dict[str, Any]


class Use(NamedTuple):
    """One place where a value is consumed: operand `position` of operation `user`."""

    user: Operation
    position: int


class AttributeReference(NamedTuple):
    """An attribute value inside a function body that stands for the attribute `name` of the calling operation.

    `kind` is the attribute's ONNX type in lower case: "float", "ints", "tensor", ...
    """

    name: str
    kind: str


class Value:
    """A result of an operation or an argument of a block. `name` is a hint that survives rewriting.

    `info` is None unless the model file listed the tensor in `value_info` (then the facts it listed besides the type).
    """

    __slots__ = ("_uses", "index", "info", "name", "owner", "type")

    def __init__(self, type: Type, owner: Operation | Block, index: int, name: str | None = None) -> None:
        self.type = type
        self.owner = owner
        self.index = index
        self.name = name
        self.info: Metadata | None = None
        self._uses: dict[Use, None] = {}

    @property
    def uses(self) -> tuple[Use, ...]:
        """All uses, in the order in which they were made; a snapshot, so safe to iterate while changing them."""
        return tuple(self._uses)

    @property
    def users(self) -> tuple[Operation, ...]:
        """The operations that use this value, each once, in order of first use."""
        return tuple(dict.fromkeys(use.user for use in self._uses))

    @property
    def use_count(self) -> int:
        return len(self._uses)

    @property
    def producer(self) -> Operation | None:
        """The operation this value is a result of; None for a block argument."""
        return self.owner if isinstance(self.owner, Operation) else None

    @property
    def is_argument(self) -> bool:
        return not isinstance(self.owner, Operation)

    @property
    def block(self) -> Block | None:
        """The block in which this value is defined; None for a result of a detached operation."""
        return self.owner.parent if isinstance(self.owner, Operation) else self.owner

    @property
    def is_output(self) -> bool:
        """Whether a terminator returns this value from its block."""
        return any(use.user.is_terminator for use in self._uses)

    def __repr__(self) -> str:
        return f"<Value %{self.name or '?'} : {self.type}>"


class Operation:
    """One operation: a definition, operands, attributes, regions, results, and where it came from.

    An operand is None where an optional input is left out. `attributes` holds only what was set; `attr` adds the
    schema's defaults. `metadata` keeps what only matters for writing the model back.
    """

    __slots__ = (
        "_next", "_operands", "_order", "_previous", "attributes", "definition", "location", "metadata", "parent",
        "regions", "results",
    )  # fmt: skip

    def __init__(
        self,
        definition: OpDefinition,
        operands: Iterable[Value | None] = (),
        attributes: Mapping[str, AttributeValue] | None = None,
        result_types: Iterable[Type] = (),
        *,
        result_names: Sequence[str | None] = (),
        regions: Mapping[str, Region] | None = None,
        location: Location = UNKNOWN,
        metadata: Metadata | None = None,
    ) -> None:
        self.definition = definition
        self.attributes: dict[str, AttributeValue] = dict(attributes or {})
        self.location = location
        self.metadata: Metadata = dict(metadata or {})
        self.parent: Block | None = None
        self._previous: Operation | None = None
        self._next: Operation | None = None
        self._order = 0
        self._operands: list[Value | None] = list(operands)
        for index, operand in enumerate(self._operands):
            if operand is not None:
                operand._uses[Use(self, index)] = None
        self.results: tuple[Value, ...] = tuple(
            Value(type, self, index, result_names[index] if index < len(result_names) else None)
            for index, type in enumerate(result_types)
        )
        self.regions: dict[str, Region] = dict(regions or {})
        for name, region in self.regions.items():
            region.parent = self
            region.name = name

    # ---- reading -------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The operation's name in IR text, such as `matmul` or `com.microsoft.BiasGelu`."""
        return self.definition.name

    @property
    def domain(self) -> str:
        return self.definition.domain

    @property
    def op_type(self) -> str:
        return self.definition.op_type

    @property
    def operands(self) -> tuple[Value | None, ...]:
        return tuple(self._operands)

    @property
    def operand_values(self) -> tuple[Value, ...]:
        """The operands that are present."""
        return tuple(operand for operand in self._operands if operand is not None)

    @property
    def result(self) -> Value:
        """The only result. Raises ValueError if there is not exactly one."""
        if len(self.results) != 1:
            raise ValueError(f"{self.name} has {len(self.results)} results, not one")
        return self.results[0]

    @property
    def is_terminator(self) -> bool:
        return self.definition.is_terminator

    def input(self, name: str | int) -> Value | None:
        """The operand at the schema's input `name` (or position); None if it is left out."""
        index = name if isinstance(name, int) else self.definition.input_index(name)
        return self._operands[index] if index < len(self._operands) else None

    def attr(self, name: str, default: AttributeValue = None) -> AttributeValue:
        """The attribute `name`: as set here, else the schema's default, else `default`."""
        if name in self.attributes:
            return self.attributes[name]
        return self.definition.attribute_default(name, default)

    @property
    def previous(self) -> Operation | None:
        return self._previous

    @property
    def next(self) -> Operation | None:
        return self._next

    @property
    def parent_op(self) -> Operation | None:
        """The operation whose region holds this one; None at the top of a function."""
        region = self.parent.parent if self.parent is not None else None
        return region.parent if region is not None and isinstance(region.parent, Operation) else None

    def is_before(self, other: Operation) -> bool:
        """Whether this operation comes before `other` in the block that holds both."""
        if self.parent is None or self.parent is not other.parent:
            raise ValueError("only operations of the same block are ordered")
        self.parent._number()
        return self._order < other._order

    def is_ancestor_of(self, other: Operation) -> bool:
        """Whether `other` is this operation or lies in one of its regions, at any depth."""
        current: Operation | None = other
        while current is not None and current is not self:
            current = current.parent_op
        return current is self

    def __repr__(self) -> str:
        return f"<Operation {self.name} @{self.location}>"

    # ---- changing: for Builder and Rewriter only -----------------------------------------------------------------

    def _set_operand(self, index: int, value: Value | None) -> None:
        old = self._operands[index]
        if old is value:
            return
        if old is not None:
            del old._uses[Use(self, index)]
        self._operands[index] = value
        if value is not None:
            value._uses[Use(self, index)] = None

    def _set_operands(self, values: Iterable[Value | None]) -> None:
        self._drop_operands()
        self._operands = list(values)
        for index, operand in enumerate(self._operands):
            if operand is not None:
                operand._uses[Use(self, index)] = None

    def _drop_operands(self) -> None:
        for index, operand in enumerate(self._operands):
            if operand is not None:
                del operand._uses[Use(self, index)]
        self._operands = []

    def _drop_results(self, keep: Sequence[int]) -> None:
        """Keep only the results at positions `keep`; the others must be unused."""
        dropped = [result for result in self.results if result.index not in keep]
        if any(result._uses for result in dropped):
            raise ValueError(f"{self.name}: a dropped result is still used")
        self.results = tuple(self.results[index] for index in keep)
        for index, result in enumerate(self.results):
            result.index = index

    def _add_results(self, types: Iterable[Type]) -> None:
        """Further results at the end."""
        added = [Value(type, self, len(self.results) + index) for index, type in enumerate(types)]
        self.results = (*self.results, *added)

    def _erase(self) -> None:
        """Unlink from the block and drop all operands, nested ones included. All results must be unused."""
        if any(result._uses for result in self.results):
            users = ", ".join(repr(user) for result in self.results for user in result.users)
            raise ValueError(f"{self!r} cannot be erased: its results are used by {users}")
        for region in self.regions.values():
            for nested in region.walk():
                nested._drop_operands()
        self._drop_operands()
        if self.parent is not None:
            self.parent._unlink(self)

    def _dissolve(self) -> None:
        """Let go of all around, whatever it is."""
        for result in self.results:
            result._uses.clear()
        self._operands, self.results, self.regions = [], (), {}
        self.parent = self._previous = self._next = None


class Block:
    """A list of operations with arguments; the last operation is the terminator, which returns the outputs.

    `outputs` names and types what the terminator returns, as the ONNX graph declares it (a name there is part of the
    model's interface and never changes; a type is a claim of the file). `metadata` holds the graph's name, doc string
    and the like.

    Iterating is safe while operations are added, erased or moved, the current one included: it goes on with what
    follows the current operation, or follows the place where that one was if it is gone. So an erased operation that
    was not reached yet is not visited, one inserted behind the current place is, and one that is moved from before
    that place to behind it is visited again.
    """

    __slots__ = ("_cursors", "_first", "_last", "_numbered", "_size", "arguments", "metadata", "outputs", "parent")

    def __init__(self, argument_types: Iterable[Type] = (), argument_names: Sequence[str | None] = ()) -> None:
        self.arguments: list[Value] = []
        for index, type in enumerate(argument_types):
            self._add_argument(type, argument_names[index] if index < len(argument_names) else None)
        self.outputs: list[BlockOutput] = []
        self.metadata: Metadata = {}
        self.parent: Region | None = None
        self._first: Operation | None = None
        self._last: Operation | None = None
        self._size = 0
        self._numbered = False
        self._cursors: list[_Cursor] = []

    # ---- reading -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Operation]:
        return self._walk(_Cursor(forward=True))

    def __reversed__(self) -> Iterator[Operation]:
        return self._walk(_Cursor(forward=False))

    def _walk(self, cursor: _Cursor) -> Iterator[Operation]:
        self._cursors.append(cursor)
        try:
            while True:
                place = cursor.place
                if place is None:
                    cursor.place = self._first if cursor.forward else self._last
                else:
                    cursor.place = place._next if cursor.forward else place._previous
                if cursor.place is None:
                    return
                yield cursor.place
        finally:
            self._cursors.remove(cursor)

    def __len__(self) -> int:
        return self._size

    @property
    def first(self) -> Operation | None:
        return self._first

    @property
    def terminator(self) -> Operation:
        """The last operation. Raises ValueError while the block is unfinished."""
        if self._last is None or not self._last.is_terminator:
            raise ValueError("the block has no terminator yet")
        return self._last

    @property
    def returned(self) -> tuple[Value, ...]:
        """The values that the terminator returns, parallel to `outputs`."""
        return self.terminator.operand_values

    def _number(self) -> None:
        if not self._numbered:
            for order, operation in enumerate(self):
                operation._order = order
            self._numbered = True

    # ---- changing: for Builder and Rewriter only -----------------------------------------------------------------

    def _add_argument(self, type: Type, name: str | None = None) -> Value:
        value = Value(type, self, len(self.arguments), name)
        self.arguments.append(value)
        return value

    def _remove_argument(self, index: int) -> None:
        if self.arguments[index]._uses:
            raise ValueError(f"argument {index} is still used")
        del self.arguments[index]
        for position, argument in enumerate(self.arguments):
            argument.index = position

    def _insert(self, operation: Operation, before: Operation | None) -> None:
        """Link a detached operation in before `before`, or at the end."""
        if operation.parent is not None:
            raise ValueError(f"{operation!r} is in a block already")
        if before is not None and before.parent is not self:
            raise ValueError(f"{before!r} is not in this block")
        previous = self._last if before is None else before._previous
        operation._previous, operation._next = previous, before
        if previous is None:
            self._first = operation
        else:
            previous._next = operation
        if before is None:
            self._last = operation
        else:
            before._previous = operation
        operation.parent = self
        self._size += 1
        self._numbered = False

    def _unlink(self, operation: Operation) -> None:
        previous, following = operation._previous, operation._next
        if previous is None:
            self._first = following
        else:
            previous._next = following
        if following is None:
            self._last = previous
        else:
            following._previous = previous
        for cursor in self._cursors:
            if cursor.place is operation:
                cursor.place = previous if cursor.forward else following
        operation.parent = operation._previous = operation._next = None
        self._size -= 1

    def _dissolve(self) -> None:
        """Let go of what is inside and around."""
        self.arguments, self.outputs = [], []
        self.parent = self._first = self._last = None
        self._size = 0


class _Cursor:
    """How far a walk over a block has come: the operation visited last, or if that is gone the one visited before it;
    None at the start."""

    __slots__ = ("forward", "place")

    def __init__(self, forward: bool) -> None:
        self.forward = forward
        self.place: Operation | None = None


class BlockOutput:
    """A declared output of a block: its name, its declared type (None if the file gives none), and extra facts."""

    __slots__ = ("info", "name", "type")

    def __init__(self, name: str | None, type: Type | None, info: Metadata | None = None) -> None:
        self.name, self.type, self.info = name, type, info

    def __repr__(self) -> str:
        return f"<BlockOutput {self.name} : {self.type}>"


class Region:
    """The body of a function or of an operation such as If: one block, and the name by which its owner knows it."""

    __slots__ = ("block", "name", "parent")

    def __init__(self, block: Block, parent: Operation | Function | None = None, name: str = "body") -> None:
        if block.parent is not None:
            raise ValueError("the block belongs to a region already")
        self.block = block
        self.parent = parent
        self.name = name
        block.parent = self

    def operations(self) -> list[Operation]:
        """All operations that are in here now, in the order of `walk`, which this is several times as fast as."""
        found: list[Operation] = []
        stack = [self.block._first]
        while stack:
            op = stack.pop()
            while op is not None:
                found.append(op)
                if op.regions:
                    stack.append(op._next)
                    stack.extend(region.block._first for region in reversed(op.regions.values()))
                    break
                op = op._next
        return found

    def walk(self) -> Iterator[Operation]:
        """All operations in here, nested ones included, each before the operations of its own regions.

        Safe under mutation like iterating a block; the regions of an operation erased when visited are skipped. Uses
        a stack, never recursion: nesting may be deep.
        """
        stack = [iter(self.block)]
        while stack:
            for operation in stack[-1]:
                yield operation
                # An operation erased by whoever walks has no living regions either.
                if operation.regions and operation.parent is not None:
                    stack.extend(iter(region.block) for region in reversed(operation.regions.values()))
                    break
            else:
                stack.pop()
