"""From a softmax to the products around it: the scores of an attention, and what was done to them.

Going up, the scores may have been scaled, capped (`tanh(x / c) * c`), masked (a term added, or a number put in by a
boolean mask), and cast to another precision; going down, the weights may be guarded against NaN and cast back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..graph.core import Operation, Value
from ..graph.dtypes import DType
from ..graph.types import TensorType
from .formulas import is_near
from .fuse_attention_views import scale_of, shape_of
from .fuse_attention_windows import Windows, find_windows
from .rules import Mismatch

if TYPE_CHECKING:
    from ..graph.infer import InferenceContext

_MAX_STEPS = 16


@dataclass(frozen=True)
class Term:
    """A mask: added to the scores, or a condition where the scores count (`inverted`: where they do not)."""

    value: Value
    op: Operation
    fill: float | None = None
    inverted: bool = False


@dataclass
class Scores:
    """The way from the product of queries and keys to the weights that the values are multiplied by.

    `terms` are the masks, the one that is applied last first. `ops` are all operations between (and with) the two
    products, in block order; they vanish.
    """

    softmax: Operation
    product: Operation
    context: Operation  # the second product
    ops: list[Operation]
    scale: float = 1.0
    softcap: float = 0.0
    precision: int | None = None
    terms: list[Term] = field(default_factory=list)
    guarded: bool = False
    reshaped: bool = False
    windows: Windows | None = None


def dtype_of(value: Value | None) -> DType | None:
    return value.type.dtype if value is not None and isinstance(value.type, TensorType) else None


def near(reason: str, *culprits: Value | Operation) -> Mismatch:
    """A refusal where there is something like attention."""
    return NearMiss(reason, culprits)


class NearMiss(Mismatch):
    """A softmax between two products that is not fused nevertheless."""

    __slots__ = ()


def read_scores(softmax: Operation, inference: InferenceContext) -> Scores | Mismatch:
    """What surrounds `softmax`; a plain Mismatch if that is not two products, a NearMiss if they do not fit."""
    down = _weights(softmax, inference)
    up = _Up(softmax, inference)
    failure = up.walk()
    if isinstance(down, Mismatch):
        return near(down.reason, *down.culprits) if failure is None and _reaches_product(softmax) else down
    if failure is not None:
        return near(failure.reason, *failure.culprits) if up.product is not None else failure
    assert up.product is not None
    context, below, guarded, cast = down
    if (
        up.precision is not None
        and cast is None
        and dtype_of(context.results[0]) is not dtype_of(up.product.results[0])
    ):
        return near("the weights are not cast back to the type of the values", softmax)
    ops = [up.product, *reversed(up.ops), softmax, *below, context]
    misused = _used_elsewhere(ops)
    if misused is not None:
        return misused
    rank = len(shape_of(softmax.results[0]) or ())
    if softmax.attr("axis", -1) not in (-1, rank - 1):
        return near(f"the softmax runs over axis {softmax.attr('axis')}, not over the keys", softmax)
    windows = None if any(op.name == "reshape" for op in below) else find_windows(up.product, up.ops[::-1])
    return Scores(
        softmax, up.product, context, ops, up.scale, up.softcap, up.precision, up.terms, guarded,
        up.reshaped and windows is None, windows,
    )  # fmt: skip


def _used_elsewhere(ops: list[Operation]) -> Mismatch | None:
    """Scores and weights that others read have to be computed anyway."""
    inside = set(ops)
    for op in ops[:-1]:
        if op.parent is not ops[-1].parent:
            return near(f"{op.name} lies in another block", op)
        for result in op.results:
            for use in result.uses:
                if use.user not in inside:
                    what = "is returned" if use.user.is_terminator else f"is read by {use.user.name}, too"
                    return near(f"the result of {op.name} {what}", result, use.user)
    return None


def _reaches_product(softmax: Operation) -> bool:
    """Whether the weights come to a matmul soon, as if they were those of an attention."""
    level = list(softmax.results[0].users)
    for _ in range(4):
        if any(user.name == "matmul" for user in level):
            return True
        level = [next_user for user in level for result in user.results for next_user in result.users]
    return False


def _weights(
    softmax: Operation, inference: InferenceContext
) -> tuple[Operation, list[Operation], bool, Operation | None] | Mismatch:
    """The second product, the operations before it, whether NaN is guarded against, and a cast."""
    value = softmax.results[0]
    below: list[Operation] = []
    guarded, cast = False, None
    for _ in range(_MAX_STEPS):
        users = value.users
        guard = _nan_guard(value, inference)
        if guard is not None:
            below.extend(guard)
            guarded, value = True, guard[1].results[0]
            continue
        if len(users) != 1 or value.use_count != 1:
            matmuls = [user for user in users if user.name == "matmul" and user.operands[0] is value]
            if len(matmuls) == 1:
                others = [user for user in users if user is not matmuls[0]]
                what = "are returned" if others and others[0].is_terminator else "have other users"
                return Mismatch(f"the weights {what}", (value, *others))
            return Mismatch("the softmax is not followed by one product with values", (softmax,))
        user = users[0]
        if user.name == "matmul" and user.operands[0] is value:
            return user, below, guarded, cast
        if user.name == "cast" and cast is None:
            cast = user
        elif user.name != "reshape":
            return Mismatch(f"the softmax is followed by {user.name}, not by a product with values", (softmax, user))
        below.append(user)
        value = user.results[0]
    return Mismatch("the softmax is not followed by a product with values", (softmax,))


def _nan_guard(value: Value, inference: InferenceContext) -> tuple[Operation, Operation] | None:
    """`where(isnan(value), 0, value)`: both operations."""
    users = value.users
    if len(users) != 2 or value.use_count != 2:
        return None
    for check, choice in (users, users[::-1]):
        if check.name != "isnan" or choice.name != "where" or check.results[0].use_count != 1:
            continue
        condition, then, otherwise = choice.operands
        data = inference.data(then)
        if condition is check.results[0] and otherwise is value and data is not None and data.elements == 1:
            same = shape_of(choice.results[0]) == shape_of(value)
            if same and float(data.numpy().reshape(()).item()) == 0:
                return check, choice
    return None


class _Up:
    """Walks from the softmax up to the first product."""

    def __init__(self, softmax: Operation, inference: InferenceContext) -> None:
        self.softmax, self.inference = softmax, inference
        self.ops: list[Operation] = []
        self.terms: list[Term] = []
        self.scale, self.softcap = 1.0, 0.0
        self.precision: int | None = None
        self.product: Operation | None = None
        self.reshaped = False

    def walk(self) -> Mismatch | None:
        """None if the product was found and all between is understood."""
        value = self.softmax.operands[0]
        for _ in range(_MAX_STEPS):
            op = value.producer if value is not None else None
            if op is None:
                return Mismatch("the softmax does not come from a product of queries and keys", (self.softmax,))
            if op.name == "matmul":
                self.product = op
                return None
            following = self._step(op)
            if isinstance(following, Mismatch):
                self.product = self._product_above(op)
                return following
            value = following
        return Mismatch("the softmax does not come from a product of queries and keys", (self.softmax,))

    def _product_above(self, op: Operation) -> Operation | None:
        """A product not far above, for telling near misses from softmaxes that have nothing to do with attention."""
        level = [op]
        for _ in range(6):
            for each in level:
                if each.name == "matmul":
                    return each
            level = [v.producer for each in level for v in each.operand_values if v.producer is not None]
        return None

    def _step(self, op: Operation) -> Value | Mismatch | None:
        """Note what `op` does to the scores; the scores before it."""
        scale = scale_of(op, self.inference)
        if scale is not None:
            return self._scaled(op, *scale)
        if op.name == "add":
            return self._added(op)
        if op.name == "where":
            return self._chosen(op)
        if op.name == "cast":
            return self._cast(op)
        if op.name == "reshape":
            self.reshaped = True
            self.ops.append(op)
            return op.operands[0]
        return Mismatch(f"{op.name} between the scores and the softmax is not part of Attention", (op,))

    def _scaled(self, op: Operation, position: int, factor: float) -> Value | Mismatch | None:
        inner = op.operands[position]
        tanh = inner.producer if inner is not None else None
        if tanh is not None and tanh.name == "tanh":
            return self._capped(op, tanh, factor)
        self.scale *= factor
        self.ops.append(op)
        return inner

    def _capped(self, op: Operation, tanh: Operation, cap: float) -> Value | Mismatch | None:
        """tanh(x / c) * c, or tanh(x * (1 / c)) * c."""
        inner = tanh.operands[0]
        divide = inner.producer if inner is not None else None
        found = scale_of(divide, self.inference) if divide is not None else None
        if divide is None or found is None or self.softcap or self.scale != 1.0 or cap <= 0:
            return Mismatch("tanh is not a soft cap of the scores", (tanh,))
        position, factor = found
        dtype = dtype_of(inner)
        if str(dtype) == "f64" and float(np.float32(cap)) != cap:
            return Mismatch("the soft cap is an attribute, an f32, which this one is not exactly", (op,))
        if not is_near(factor * cap, 1.0, dtype):
            # The scale of the scores is part of the division.
            self.scale = factor * cap
        self.softcap = cap
        self.ops += [op, tanh, divide]
        return divide.operands[position]

    def _added(self, op: Operation) -> Value | Mismatch | None:
        if self.scale != 1.0:
            return Mismatch("the mask is scaled together with the scores", (op,))
        if self.softcap:
            return Mismatch("the soft cap comes after the mask", (op,))
        left, right = op.operands
        ways = [(a, b) for a, b in ((left, right), (right, left)) if self._leads_up(a)]
        if not ways:
            return Mismatch("neither term of the sum comes from a product of queries and keys", (op,))
        scores, mask = ways[0]
        assert mask is not None
        self.terms.append(Term(mask, op))
        self.ops.append(op)
        return scores

    def _chosen(self, op: Operation) -> Value | Mismatch | None:
        condition, then, otherwise = op.operands
        assert condition is not None
        for scores, number, inverted in ((then, otherwise, False), (otherwise, then, True)):
            data = self.inference.data(number)
            if data is None or data.elements != 1 or not self._leads_up(scores):
                continue
            if self.scale != 1.0 or self.softcap:
                return Mismatch("the masked scores are scaled", (op,))
            fill = float(data.numpy().reshape(()).item())
            if fill != fill:
                return Mismatch("scores are replaced by NaN", (op,))
            self.terms.append(Term(condition, op, fill, inverted))
            self.ops.append(op)
            return scores
        return Mismatch("the condition does not choose between scores and one number", (op,))

    def _cast(self, op: Operation) -> Value | Mismatch | None:
        inner = op.operands[0]
        if self.ops or dtype_of(inner) is None or dtype_of(inner) is dtype_of(op.results[0]):
            return Mismatch("a cast between the scores and the mask", (op,))
        self.precision = int(op.attr("to"))
        self.ops.append(op)
        return inner

    def _leads_up(self, value: Value | None) -> bool:
        """Whether `value` comes from a product by the operations that are understood."""
        for _ in range(_MAX_STEPS):
            op = value.producer if value is not None else None
            if op is None:
                return False
            if op.name == "matmul":
                return True
            scale = scale_of(op, self.inference)
            if scale is not None:
                value = op.operands[scale[0]]
            elif op.name in ("cast", "reshape", "tanh"):
                value = op.operands[0]
            elif op.name == "add":
                return any(self._leads_up(operand) for operand in op.operands)
            elif op.name == "where":
                return any(self._leads_up(operand) for operand in op.operands[1:])
            else:
                return False
        return False
