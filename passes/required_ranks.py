"""What rank a value must have for the operations that use it not to fail.

An If whose branches give tensors of different ranks, in front of an operator that takes one of them only, has a
condition that is decided: in every run that comes to an end, the fitting branch is taken.
"""

from __future__ import annotations

from ..graph.core import Operation, Value
from ..graph.data import TensorData
from ..graph.types import TensorType

# How far users are followed.
MAX_DEPTH = 8
# Operator -> the rank of its operands at these positions.
_FIXED: dict[str, dict[int, int]] = {
    "gemm": {0: 2, 1: 2},
    "lstm": {0: 3, 5: 3, 6: 3},
    "gru": {0: 3, 5: 3},
    "rnn": {0: 3, 5: 3},
    "depth_to_space": {0: 4},
    "space_to_depth": {0: 4},
}
_SAME_RANK = frozenset({"relu", "sigmoid", "tanh", "cast", "exp", "sqrt", "neg", "abs", "identity", "softmax"})


def required_rank(value: Value, depth: int = MAX_DEPTH) -> int | None:
    """The only rank of `value` with which its users in the same block can run; None if there is no such demand.

    Users without a used result are not asked: a runtime may leave them out.
    """
    for use in value.uses:
        user = use.user
        if user.parent is not value.block or user.is_terminator or depth == 0:
            continue
        rank = _demand(user, use.position, depth)
        if rank is not None and _is_needed(user):
            return rank
    return None


def _demand(user: Operation, position: int, depth: int) -> int | None:
    """The rank that `user` demands of its operand at `position`, itself or by way of its result's users."""
    fixed = _FIXED.get(user.name, {}).get(position)
    if fixed is not None:
        return fixed
    if position != 0:
        return None
    if user.name == "transpose" and user.attr("perm") is not None:
        return len(user.attr("perm"))
    if user.name in ("conv", "conv_transpose"):
        return _rank(user.operands[1])
    if user.name in _SAME_RANK:
        return required_rank(user.results[0], depth - 1)
    axes = _axis_count(user) if user.name in ("squeeze", "unsqueeze") else None
    after = required_rank(user.results[0], depth - 1) if axes is not None else None
    if axes is None or after is None:
        return None
    return after - axes if user.name == "unsqueeze" else after + axes


def _axis_count(op: Operation) -> int | None:
    axes = op.input(1)
    data = axes.producer.attributes.get("value") if axes is not None and axes.producer is not None else None
    return data.elements if isinstance(data, TensorData) else None


def _rank(value: Value | None) -> int | None:
    return value.type.rank if value is not None and isinstance(value.type, TensorType) else None


def _is_needed(op: Operation) -> bool:
    """Whether what `op` gives reaches the outputs of its block."""
    seen = {op}
    pending = [op]
    while pending:
        for result in pending.pop().results:
            for user in result.users:
                if user.is_terminator and user.parent is op.parent:
                    return True
                # What a region returns is what the operation that owns it gives.
                reached = user.parent_op if user.is_terminator else user
                if reached is not None and reached not in seen:
                    seen.add(reached)
                    pending.append(reached)
    return False
