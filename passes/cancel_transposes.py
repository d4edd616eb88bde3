"""cancel-transposes: move transposes through the operations between them, so that they meet and vanish. Level onnx.

Between a Transpose and its inverse there is often a stretch of operations that do not care about the order of axes:
elementwise ones, and ones along a named axis. The pass grows an island of them from a Transpose, counts the transposes
that working on the untransposed tensors removes and adds, and rewrites the island if that pays.

Invariant: inside the island every value is the old one with its axes in the order before the Transpose; each element
is computed from the same numbers in the same way.

    %0 = transpose %x {perm=[0, 2, 3, 1]} : f32[n, h, w, c]
    %1 = relu %0 : f32[n, h, w, c]                                 ->      %2 = relu %x : f32[n, c, h, w]
    %2 = transpose %1 {perm=[0, 3, 1, 2]} : f32[n, c, h, w]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..graph.core import Operation, Use, Value
from ..graph.data import derived
from ..graph.infer import InferenceContext
from ..graph.opdef import Trait
from ..graph.types import TensorType
from .base import Pass
from .proofs import normalized

if TYPE_CHECKING:
    from ..graph.module import Module
    from ..graph.rewriter import Rewriter
    from .context import PassContext

# Operations along the axis that an attribute names, with the attribute's default.
_ALONG_AXIS = {"concat": 0, "split": 0, "softmax": -1, "log_softmax": -1}
_REDUCTIONS = ("reduce_mean", "reduce_sum", "reduce_max", "reduce_min", "reduce_l1", "reduce_l2")


@dataclass
class Island:
    """Operations that can work on tensors in the order of axes before `perm`, and what crosses their border.

    `removed` are transposes that become unnecessary, `entering` values that need the inverse transpose first,
    `leaving` values that others read and that need the transpose behind.
    """

    perm: tuple[int, ...]
    ops: dict[Operation, None] = field(default_factory=dict)
    removed: dict[Operation, None] = field(default_factory=dict)
    entering: dict[Value, None] = field(default_factory=dict)
    leaving: dict[Value, None] = field(default_factory=dict)

    def gain(self) -> int:
        """How many transposes fewer there are after the rewrite."""
        return len(self.removed) - len(self.entering) - len(self.leaving)


def _rank(value: Value | None) -> int | None:
    return value.type.rank if value is not None and isinstance(value.type, TensorType) else None


def permutation(op: Operation) -> tuple[int, ...] | None:
    """The permutation of a Transpose; None for another operation, an unknown rank, or one that it does not fit."""
    rank = _rank(op.operands[0]) if op.name == "transpose" else None
    if rank is None:
        return None
    perm = tuple(op.attr("perm") or range(rank - 1, -1, -1))
    return perm if sorted(perm) == list(range(rank)) else None


def inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(axis) for axis in np.argsort(perm))


class _Finder:
    """Finds the island that starts at one Transpose."""

    def __init__(self, start: Operation, perm: tuple[int, ...], inference: InferenceContext) -> None:
        self.start, self.perm, self.inference = start, perm, inference
        self.island = Island(perm)

    def find(self) -> Island:
        island = self.island
        pending = [use.user for use in self.start.results[0].uses]
        while pending:
            op = pending.pop()
            if op in island.ops or not self.is_transparent(op):
                continue
            island.ops[op] = None
            pending.extend(use.user for result in op.results for use in result.uses)
            pending.extend(
                operand.producer
                for operand in self.tensor_operands(op)
                if operand.producer is not None and not self._is_start(operand)
            )
        self._find_border()
        return island

    def _is_start(self, value: Value) -> bool:
        return value.producer is not None and permutation(value.producer) == self.perm

    def is_transparent(self, op: Operation) -> bool:
        """Whether `op` computes the same with its axes in another order."""
        rank = len(self.perm)
        if op.parent is not self.start.parent or op.regions or not op.results:
            return False
        if any(_rank(result) != rank for result in op.results):
            return False
        if op.name in _REDUCTIONS:
            return bool(op.attr("keepdims", 1)) and self.inference.constant(op.input(1)) is not None
        if op.name in _ALONG_AXIS:
            return all(_rank(operand) == rank for operand in self.tensor_operands(op))
        if Trait.ELEMENTWISE not in op.definition.traits:
            return False
        return all(_rank(operand) == rank or self._is_small(operand) for operand in op.operand_values)

    def _is_small(self, operand: Value) -> bool:
        """A number, or a constant that can be given its axes."""
        return _rank(operand) == 0 or (_rank(operand) is not None and self.inference.data(operand) is not None)

    def tensor_operands(self, op: Operation) -> list[Value]:
        """The operands whose axes matter: not sizes of a Split, axes of a reduction, numbers, or constants."""
        count = 1 if op.name == "split" or op.name in _REDUCTIONS else len(op.operands)
        rank = len(self.perm)
        return [v for v in op.operands[:count] if v is not None and _rank(v) == rank and self.inference.data(v) is None]

    def _find_border(self) -> None:
        island = self.island
        for op in island.ops:
            for operand in self.tensor_operands(op):
                if operand.producer in island.ops:
                    continue
                if not self._is_start(operand):
                    island.entering[operand] = None
                elif all(use.user in island.ops for use in operand.uses):
                    assert operand.producer is not None
                    island.removed[operand.producer] = None
            for result in op.results:
                for use in result.uses:
                    if use.user in island.ops:
                        continue
                    if permutation(use.user) == inverse(self.perm):
                        island.removed[use.user] = None
                    elif use.user.name != "transpose":
                        island.leaving[result] = None


class _Rewrite:
    """Rewrites one island."""

    def __init__(self, finder: _Finder, rewriter: Rewriter) -> None:
        self.finder, self.island, self.rewriter = finder, finder.island, rewriter
        self.plain: dict[Value, Value] = {}

    def run(self) -> None:
        ordered = [op for op in self._block_order() if op in self.island.ops]
        for op in ordered:
            self._rewrite(op)
        for op in ordered:
            for result in op.results:
                self._replace_outside(result)
        for op in reversed(ordered):
            self.rewriter.erase(op)

    def _block_order(self) -> Iterator[Operation]:
        block = self.finder.start.parent
        assert block is not None
        yield from list(block)

    def _rewrite(self, op: Operation) -> None:
        perm, b = self.island.perm, self.rewriter.before(op)
        operands = [None if operand is None else self._plain(operand, op) for operand in op.operands]
        attributes = dict(op.attributes)
        if op.name in _ALONG_AXIS:
            axis = op.attr("axis", _ALONG_AXIS[op.name])
            attributes["axis"] = perm[normalized([axis], len(perm))[0]]
            operands[1:] = op.operands[1:] if op.name == "split" else operands[1:]
        if op.name in _REDUCTIONS:
            axes = self.finder.inference.constant(op.input(1))
            assert axes is not None
            moved = [perm[axis] for axis in normalized([int(axis) for axis in axes.ravel()], len(perm))]
            operands[1] = b.const(np.array(moved, np.int64))
        made = b.create(op.definition, operands, attributes, outputs=len(op.results), location=op.location)
        self.plain.update(zip(op.results, made.results, strict=True))

    def _plain(self, value: Value, user: Operation) -> Value:
        """`value` with its axes as they are before the permutation."""
        if value in self.plain:
            return self.plain[value]
        producer = value.producer
        data = self.finder.inference.data(value)
        if producer is not None and permutation(producer) == self.island.perm:
            source = producer.operands[0]
            assert source is not None
            self.plain[value] = source
        elif data is not None and data.shape:
            # A constant with fewer axes gets the leading ones that broadcasting would give it.
            shape = (1,) * (len(self.island.perm) - len(data.shape)) + data.shape
            perm = inverse(self.island.perm)
            plain = derived(
                lambda array: array.reshape(shape).transpose(perm), data,
                dtype=data.dtype, shape=tuple(shape[axis] for axis in perm),
            )  # fmt: skip
            self.plain[value] = self.rewriter.before(user).const(plain)
        elif _rank(value) == len(self.island.perm):
            b = self.rewriter.before(user)
            self.plain[value] = b.create("transpose", [value], {"perm": inverse(self.island.perm)}).result
        else:
            self.plain[value] = value
        return self.plain[value]

    def _replace_outside(self, value: Value) -> None:
        """Give users outside the island what they read."""
        plain = self.plain[value]
        back: Value | None = None
        for use in value.uses:
            if use.user in self.island.ops:
                continue
            if permutation(use.user) is not None:
                self._merge(use, plain)
                continue
            if back is None:
                producer = value.producer
                assert producer is not None
                back = self.rewriter.before(producer).create("transpose", [plain], {"perm": self.island.perm}).result
                back.name, back.info = value.name, value.info
            self.rewriter.set_operand(use.user, use.position, back)

    def _merge(self, use: Use, plain: Value) -> None:
        """A transpose behind the island: the inverse vanishes, another one is applied to the plain value directly."""
        outer = permutation(use.user)
        assert outer is not None
        if outer == inverse(self.island.perm):
            self.rewriter.replace(use.user, [plain])
        else:
            merged = tuple(self.island.perm[axis] for axis in outer)
            self.rewriter.set_operand(use.user, 0, plain)
            self.rewriter.set_attribute(use.user, "perm", merged)


class CancelTransposes(Pass):
    """Move transposes through operations that do not care, where they cancel."""

    name = "cancel-transposes"

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for op in list(module.walk()):
            perm = permutation(op) if op.parent is not None and op.name == "transpose" else None
            if perm is None or not context.may_apply:
                continue
            finder = _Finder(op, perm, InferenceContext(module.symbols))
            gain = finder.find().gain()
            if gain <= 0:
                continue
            with context.rewrite(module, self.name, op, f"saves {gain} transposes") as rewriter:
                _Rewrite(finder, rewriter).run()
            changed = True
        return changed
