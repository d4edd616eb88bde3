"""What differs between two modules, by structure: which operations went, came or changed, and what came from what.

Operations are paired by the tensors they make and by where they come from, not by their place in the text, so
renumbered names are no difference. What is left over on both sides is gathered into changes: a new operation belongs
together with the removed ones that its location names, or whose results it now makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from .core import Block, Operation, Value
from .data import TensorData
from .location import UNKNOWN, Location, NodeLocation
from .module import Module
from .names import type_text, value_names
from .printer import print_operation


@dataclass
class Change:
    """Operations that were replaced together: lines of `removed` and `added` ones, and of operations that stayed but
    changed in place. `sources` are the places that the removed and added operations come from."""

    removed: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    modified: list[tuple[str, str]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    position: int = 0


@dataclass
class BlockDiff:
    """The changes in one block. `path` is `@main`, or with the operations on the way, `@main / if %y / then_branch`."""

    path: str
    changes: list[Change] = field(default_factory=list)
    interface: list[tuple[str, str]] = field(default_factory=list)  # lines before and after
    unchanged: int = 0
    retyped: int = 0  # operations that differ in nothing but result types


@dataclass
class ModuleDiff:
    """All blocks with a difference, and what differs in the module as a whole."""

    blocks: list[BlockDiff] = field(default_factory=list)
    header: list[tuple[str, str]] = field(default_factory=list)
    constants_removed: int = 0
    constants_added: int = 0
    unchanged: int = 0
    retyped: int = 0

    @property
    def changes(self) -> list[Change]:
        return [change for block in self.blocks for change in block.changes]

    @property
    def is_empty(self) -> bool:
        constants = self.constants_removed or self.constants_added
        return not (self.blocks or self.header or constants or self.retyped)


def diff_modules(before: Module, after: Module, same_origin: bool = False) -> ModuleDiff:
    """What is different in `after`.

    `same_origin` tells that locations on both sides speak of one file, as in two steps of a trace; otherwise the
    index of a node means nothing on the other side, and only its name is compared.
    """
    found = ModuleDiff()
    for name, mine, other in [("opsets", before.opsets, after.opsets), ("level", before.level, after.level)]:
        if mine != other:
            found.header.append((f"{name} {mine}", f"{name} {other}"))
    for key in {**before.functions, **after.functions}:
        if (key in before.functions) != (key in after.functions):
            pair = (f"func @{key}", "") if key in before.functions else ("", f"func @{key}")
            found.header.append(pair)
    pairs = [("@main", before.main.block, after.main.block)]
    pairs += [(f"@{k}", f.block, after.functions[k].block) for k, f in before.functions.items() if k in after.functions]
    for path, mine_block, other_block in pairs:
        comparison = _Comparison(value_names(mine_block), value_names(other_block), found, same_origin)
        comparison.run(path, mine_block, other_block)
    return found


class _Comparison:
    """The comparison of one function: `same` pairs values of the two sides."""

    def __init__(
        self, names: dict[Value, str], other_names: dict[Value, str], found: ModuleDiff, same_origin: bool
    ) -> None:
        self.names, self.other_names, self.found, self.same_origin = names, other_names, found, same_origin
        self.same: dict[Value, Value] = {}
        self.other_of: dict[Value, Value] = {}
        self.new_constants: set[Operation] = set()

    def run(self, path: str, before: Block, after: Block) -> None:
        waiting = [(path, before, after)]
        while waiting:
            where, mine, other = waiting.pop()
            waiting += reversed(list(self.block(where, mine, other)))

    def block(self, path: str, before: Block, after: Block) -> Iterator[tuple[str, Block, Block]]:
        """Compare one pair of blocks; gives the pairs of blocks inside operations that stayed."""
        result = BlockDiff(path)
        self._arguments(result, before, after)
        pairs = _pair_operations(before, after, self._places)
        for mine, other in pairs.items():
            for value, partner in zip(mine.results, other.results, strict=False):
                self._pair(value, partner)
        self._pair_by_meaning(pairs, before, after)
        gone = [op for op in before if op not in pairs]
        partners = set(pairs.values())
        new = [op for op in after if op not in partners]
        self._name_values(pairs, gone, new)
        changes = self._gather(gone, new, before)
        for mine, other in pairs.items():
            self._compare(result, changes, mine, other)
        self.found.constants_removed += sum(op.name == "const" for op in gone)
        self.found.constants_added += sum(op.name == "const" for op in new)
        result.changes = sorted(
            (c for c in changes.all if c.removed or c.added or c.modified), key=lambda c: c.position
        )
        self.found.unchanged += result.unchanged
        self.found.retyped += result.retyped
        if result.changes or result.interface:
            self.found.blocks.append(result)
        for mine, other in pairs.items():
            for name, region in mine.regions.items():
                if name in other.regions:
                    inner = f"{path} / {mine.name} {self._title(mine)} / {name}"
                    yield inner, region.block, other.regions[name].block

    def _pair_by_meaning(self, pairs: dict[Operation, Operation], before: Block, after: Block) -> None:
        """Pair what has neither a name nor a source if it does the same to the same values."""

        def is_bare(op: Operation) -> bool:
            return not op.is_terminator and not self._places(op) and all(r.name is None for r in op.results)

        taken = set(pairs.values())
        waiting: dict[str, list[Operation]] = {}
        for op in after:
            if op not in taken and is_bare(op):
                waiting.setdefault(op.name, []).append(op)
        for op in before:
            candidates = waiting.get(op.name, []) if op not in pairs and is_bare(op) else []
            partner = next((each for each in candidates if self._same_meaning(op, each)), None)
            if partner is not None:
                candidates.remove(partner)
                pairs[op] = partner
                for value, other in zip(op.results, partner.results, strict=True):
                    self._pair(value, other)

    # ---- names and interface -------------------------------------------------------------------------------------

    def _pair(self, mine: Value, other: Value) -> None:
        self.same[mine] = other
        self.other_of[other] = mine

    def _arguments(self, result: BlockDiff, before: Block, after: Block) -> None:
        by_name = {argument.name: argument for argument in after.arguments}
        for argument in before.arguments:
            partner = by_name.get(argument.name)
            if partner is None and argument.index < len(after.arguments) and argument.name is None:
                partner = after.arguments[argument.index]
            if partner is not None:
                self._pair(argument, partner)
        mine, other = _signature(before), _signature(after)
        if mine != other:
            result.interface.append((mine, other))

    def _name_values(self, pairs: dict[Operation, Operation], gone: list[Operation], new: list[Operation]) -> None:
        """Values without a name: the same number on both sides if they are the same, else `%-1` and `%+1`."""
        for op in pairs:
            for value in op.results:
                other = self.same.get(value)
                if other is not None and other.name is None:
                    self.other_names[other] = self.names[value]
        for ops, names, sign in [(gone, self.names, "-"), (new, self.other_names, "+")]:
            for value in (result for op in ops for result in op.results if result.name is None):
                names[value] = f"%{sign}{names[value].lstrip('%+-')}"

    def _title(self, op: Operation) -> str:
        return op.location.name or next((self.names[result] for result in op.results), "")

    def _places(self, op: Operation) -> list[str]:
        """Where `op` comes from, in words that mean the same on both sides."""
        leaves = [leaf for leaf in op.location.leaves() if leaf is not UNKNOWN]
        if self.same_origin:
            return [str(leaf) for leaf in leaves]
        named = [leaf for leaf in leaves if not isinstance(leaf, NodeLocation) or leaf.node_name]
        return [leaf.name or str(leaf) for leaf in named]

    # ---- changes -------------------------------------------------------------------------------------------------

    def _gather(self, gone: Sequence[Operation], new: Sequence[Operation], before: Block) -> _Changes:
        """One change for each group of removed and new operations that share a source or a result's name, or of which
        one only fed the other. A new constant is shown with what reads it; of removed ones only the number is told.
        """
        changes = _Changes()
        positions = {op: index for index, op in enumerate(before)}
        gone = [op for op in gone if op.name != "const" and not op.is_terminator]
        self.new_constants = {op for op in new if op.name == "const"}
        new = [op for op in new if op.name != "const" and not op.is_terminator]
        for op in [*gone, *new]:
            changes.join(op, [*self._places(op), *(f"%{result.name}" for result in op.results if result.name)])
        lost = set(gone)
        for op in gone:
            users = [user for result in op.results for user in result.users]
            if users and all(user in lost for user in users):
                changes.link(op, users[0])
        for op in gone:
            change = changes.of(op)
            assert change is not None
            change.removed.append(print_operation(op, self.names))
            change.position = change.position or positions[op]
        for op in new:
            change = changes.of(op)
            assert change is not None
            self._add_constants(change, op)
            change.added.append(print_operation(op, self.other_names))
            change.position = change.position or self._position(op, positions)
            change.rules += [rule for rule in [_rule(op.location)] if rule and rule not in change.rules]
        changes.finish()
        return changes

    def _add_constants(self, change: Change, reader: Operation) -> None:
        """Lines for the new constants that `reader` is the first to read."""
        for value in reader.operand_values:
            if value.producer is not None and value.producer in self.new_constants:
                self.new_constants.discard(value.producer)
                change.added.append(print_operation(value.producer, self.other_names))

    def _position(self, op: Operation, positions: dict[Operation, int]) -> int:
        """Behind the last operation of the old block that the new one `op` reads."""
        producers = (self.other_of[v].producer for v in op.operand_values if v in self.other_of)
        return max((positions.get(producer, 0) for producer in producers if producer is not None), default=0)

    def _compare(self, result: BlockDiff, changes: _Changes, mine: Operation, other: Operation) -> None:
        """Note whether an operation that is on both sides changed in place."""
        if self._same_meaning(mine, other):
            types = zip(mine.results, other.results, strict=True)
            result.unchanged += mine.name != "const" and not mine.is_terminator
            result.retyped += any(type_text(value.type) != type_text(partner.type) for value, partner in types)
            return
        if mine.is_terminator:
            return
        neighbours = [value.producer for value in mine.operand_values]
        if mine.name == "const":
            neighbours = list(mine.result.users)
        # Where it makes what a removed operation made, it has taken that in.
        change = next((c for r in other.results if (c := changes.at(f"%{r.name}")) is not None), None)
        change = change or next((c for op in neighbours if (c := changes.of(op)) is not None), None)
        if change is None:
            change = Change(position=sum(1 for _ in mine.parent) if mine.parent is not None else 0)
            change.sources = self._places(mine)
            changes.all.append(change)
        self._add_constants(change, other)
        change.modified.append((print_operation(mine, self.names), print_operation(other, self.other_names)))

    def _same_meaning(self, mine: Operation, other: Operation) -> bool:
        """Whether attributes, operands and the number of results are the same (regions are compared by themselves)."""
        if mine.attributes.keys() != other.attributes.keys() or len(mine.results) != len(other.results):
            return False
        same = all(_same(value, other.attributes[name]) for name, value in mine.attributes.items())
        return same and self._same_inputs(mine, other)

    def _same_inputs(self, mine: Operation, other: Operation) -> bool:
        if len(mine.operands) != len(other.operands):
            return False
        return all(
            a is b is None or (a is not None and b is not None and self._same_value(a, b))
            for a, b in zip(mine.operands, other.operands, strict=True)
        )

    def _same_value(self, mine: Value, other: Value) -> bool:
        partner = self.same.get(mine)
        return partner is other or (partner is None and mine.name is not None and mine.name == other.name)


class _Changes:
    """Groups of operations, joined by the keys they have in common."""

    def __init__(self) -> None:
        self.all: list[Change] = []
        self._group: dict[str, str] = {}  # key -> a key of the same group, in the end the group's own
        self._keys: dict[Operation, str] = {}
        self._change: dict[str, Change] = {}

    def join(self, op: Operation, keys: list[str]) -> None:
        roots = list(dict.fromkeys(self._root(key) for key in keys or [f"#{id(op)}"]))
        for root in roots[1:]:
            self._group[root] = roots[0]
        self._keys[op] = roots[0]

    def link(self, op: Operation, other: Operation) -> None:
        """Put the groups of two operations together."""
        self._group[self._root(self._keys[op])] = self._root(self._keys[other])

    def of(self, op: Operation | None) -> Change | None:
        """The change that `op` belongs to; None if it belongs to none."""
        if op is None or op not in self._keys:
            return None
        root = self._root(self._keys[op])
        change = self._change.get(root)
        if change is None:
            change = self._change[root] = Change()
            self.all.append(change)
        return change

    def at(self, key: str) -> Change | None:
        """The change that has this key."""
        return self._change.get(self._root(key)) if key in self._group else None

    def finish(self) -> None:
        """Note the sources of each change."""
        for key in self._group:
            change = self._change.get(self._root(key))
            if change is not None and not key.startswith(("%", "#")):
                change.sources.append(key)

    def _root(self, key: str) -> str:
        self._group.setdefault(key, key)
        while self._group[key] != key:
            self._group[key] = self._group[self._group[key]]
            key = self._group[key]
        return key


def _pair_operations(
    before: Block, after: Block, places: Callable[[Operation], list[str]]
) -> dict[Operation, Operation]:
    """Operations that are the same on both sides: by the names of their results, then by where they come from."""

    def by_results(op: Operation) -> object:
        names = tuple(result.name for result in op.results)
        return (op.name, names) if names and all(names) else (op.name if op.is_terminator else None)

    def by_places(op: Operation) -> object:
        found = places(op)
        return (op.name, tuple(found)) if found and op.name != "const" else None

    pairs: dict[Operation, Operation] = {}
    taken: set[Operation] = set()
    for key_of in (by_results, by_places, _by_content):
        waiting: dict[object, list[Operation]] = {}
        for op in after:
            key = key_of(op) if op not in taken else None
            if key is not None:
                waiting.setdefault(key, []).append(op)
        for op in before:
            key = key_of(op) if op not in pairs else None
            candidates = waiting.get(key) if key is not None else None
            if candidates:
                pairs[op] = candidates.pop(0)
                taken.add(pairs[op])
    return pairs


def _by_content(op: Operation) -> object:
    """Constants without a name, by what they hold."""
    data = op.attributes.get("value") if op.name == "const" else None
    return data.sha256 if isinstance(data, TensorData) else None


def _same(mine: object, other: object) -> bool:
    if isinstance(mine, TensorData) and isinstance(other, TensorData):
        return mine.same_as(other)
    return type(mine) is type(other) and (mine == other or repr(mine) == repr(other))


def _rule(location: Location) -> str:
    return str(getattr(location, "rule", ""))


def _signature(block: Block) -> str:
    inputs = (f"%{argument.name or '?'}: {type_text(argument.type)}" for argument in block.arguments)
    outputs = (f"%{out.name or '?'}: {type_text(out.type) if out.type is not None else '?'}" for out in block.outputs)
    return f"({', '.join(inputs)}) -> ({', '.join(outputs)})"


__all__ = ["BlockDiff", "Change", "ModuleDiff", "diff_modules"]
