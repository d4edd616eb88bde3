"""Names for values and nodes: those of the file stay, new ones are short, and nothing ever collides.

ONNX wants the names of all values visible at one place to differ; sibling subgraphs may use the same ones. A name that
is made up stands in the file at least twice, and with it a small model must not become larger than it was: what a
tensor stems from is told by the name of its node.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...graph.core import Block, Operation, Value
from ...graph.location import Location, NodeLocation


class NameScope:
    """The names given so far in one graph, and the scope of the graph around it.

    `reserved` are names that belong to certain values of this graph only: its outputs.
    """

    def __init__(self, outer: NameScope | None = None, reserved: Iterable[str] = ()) -> None:
        self.outer = outer
        self.given: set[str] = set()
        self.reserved = set(reserved)

    def is_free(self, name: str) -> bool:
        if name in self.reserved:
            return False
        scope: NameScope | None = self
        while scope is not None:
            if name in scope.given:
                return False
            scope = scope.outer
        return True


class NameTable:
    """The names of one function's values and nodes. `known` holds every name that occurs as a hint or elsewhere."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = set(known)
        self._counters: dict[str, int] = {}
        self._names: dict[Value, str] = {}
        self._node_names: set[str] = set()
        self._seen_nodes: set[tuple[Block | None, Location]] = set()

    # ---- values --------------------------------------------------------------------------------------------------

    def __contains__(self, value: Value) -> bool:
        return value in self._names

    def __getitem__(self, value: Value) -> str:
        return self._names[value]

    def settle(self, value: Value, name: str) -> None:
        """Decide the name of a value that is defined later, in a scope where the name is reserved for it."""
        self._names[value] = name

    def set(self, value: Value, name: str, scope: NameScope) -> None:
        """Settle the name of `value`, whose place in `scope` the caller vouches for."""
        self._names[value] = name
        scope.given.add(name)

    def define(self, value: Value, scope: NameScope) -> str:
        """The name of `value`, which is defined in `scope`: settled before, or its own if free, or a new one."""
        name = self._names.get(value)
        if name is not None:
            scope.given.add(name)
            return name
        name = value.name
        if not name:
            name = self.numbered(_letter(value))
        elif not scope.is_free(name):
            name = self.fresh(name)
        self.set(value, name, scope)
        return name

    def fresh(self, hint: str) -> str:
        """A name that occurs nowhere: `hint` itself if it is new, else with a number."""
        name = hint
        while name in self._known:
            number = self._counters.get(hint, 0) + 1
            self._counters[hint] = number
            name = f"{hint}_{number}"
        self._known.add(name)
        return name

    def numbered(self, letter: str) -> str:
        """A name that occurs nowhere: `letter`, or that and a number."""
        number = self._counters.get(letter, -1)
        while True:
            number += 1
            name = f"{letter}{number}" if number else letter
            if name not in self._known:
                self._counters[letter] = number
                self._known.add(name)
                return name

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def know_nodes(self, operations: Iterable[Operation]) -> None:
        """Keep the names of nodes that come from the file for them."""
        self._node_names.update(op.location.name for op in operations if isinstance(op.location, NodeLocation))

    def node(self, op: Operation) -> str:
        """The node name of `op`: as in the file, also if it was not unique there; a derived name is made unique."""
        name = op.location.name
        if not name:
            return ""
        if isinstance(op.location, NodeLocation):
            key = (op.parent, op.location)
            if key not in self._seen_nodes:
                self._seen_nodes.add(key)
                return name
        unique, number = name, 0
        while unique in self._node_names:
            number += 1
            unique = f"{name}_{number}"
        self._node_names.add(unique)
        return unique


def _letter(value: Value) -> str:
    """What the name of a value begins with that has none: constant or tensor."""
    return "c" if value.producer is not None and value.producer.name == "const" else "t"
