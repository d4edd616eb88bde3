"""Parts of a tensor along its last dim, as rotary embeddings take them: halves, neighbours, the first so many.

Each function says which operations take the parts, or why the values are not these parts.
"""

from __future__ import annotations

from ..graph.core import Operation, Value
from .proofs import ints, normalized
from .rules import Match, Mismatch

Taken = tuple[Operation, ...]


def source_of(value: Value) -> Value | None:
    """What a Slice or Split takes `value` from."""
    producer = value.producer
    return producer.operands[0] if producer is not None and producer.name in ("slice", "split") else None


def take_range(m: Match, value: Value, x: Value, start: int, stop: int, size: int, step: int = 1) -> Taken | Mismatch:
    """Whether `value` is x[..., start:stop:step], where the last dim of x is `size`."""
    op, rank = value.producer, m.rank(x)
    if op is None or rank is None or not op.operands or op.operands[0] is not x:
        return m.fail("it is no part of the embedding's operand", value, x)
    if op.name == "slice":
        found = _slice_of(m, op, rank, size)
    elif op.name == "split" and step == 1:
        found = _piece_of(m, op, value.index, rank, size)
    else:
        return m.fail("it is no part of the embedding's operand", value, x)
    if found is None or (found[0], _last(found), found[2]) != (start, _last((start, stop, step)), step):
        return m.fail(f"it is not the part {start}:{stop}:{step} of the last dim", value)
    return (op,)


def _last(part: tuple[int, int, int]) -> int:
    """The last index of a range, so that 1:8:2 and 1:9:2 are the same."""
    start, stop, step = part
    return start + (stop - 1 - start) // step * step


def _slice_of(m: Match, op: Operation, rank: int, size: int) -> tuple[int, int, int] | None:
    """Start, stop and step of a Slice along the last dim alone."""
    starts, ends, axes = (ints(m, op.input(index)) for index in (1, 2, 3))
    steps = [1] if op.input(4) is None else ints(m, op.input(4))
    if starts is None or ends is None or axes is None or steps is None or len(axes) != 1 or steps[0] < 1:
        return None
    if normalized(axes, rank) != [rank - 1]:
        return None
    first, last = (min(max(bound + size if bound < 0 else bound, 0), size) for bound in (starts[0], ends[0]))
    return first, last, steps[0]


def _piece_of(m: Match, op: Operation, index: int, rank: int, size: int) -> tuple[int, int, int] | None:
    """Start and stop of result `index` of a Split along the last dim."""
    if op.attr("axis") % rank != rank - 1:
        return None
    count = len(op.results)
    sizes = ints(m, op.input(1)) if op.input(1) is not None else [size // count] * count
    if sizes is None or len(sizes) != count or sum(sizes) != size:
        return None
    start = sum(sizes[:index])
    return start, start + sizes[index], 1


def halves(m: Match, first: Value, second: Value, x: Value, size: int) -> Taken | Mismatch:
    """Whether two values are the halves of `x` along its last dim."""
    half = size // 2
    return _both(take_range(m, first, x, 0, half, size), take_range(m, second, x, half, size, size))


def neighbours(m: Match, even: Value, odd: Value, x: Value, size: int) -> Taken | Mismatch:
    """Whether two values are the elements at even and at odd places of `x` along its last dim."""
    return _both(take_range(m, even, x, 0, size, size, 2), take_range(m, odd, x, 1, size, size, 2))


def first_and_rest(m: Match, first: Value, rest: Value, x: Value, count: int, size: int) -> Taken | Mismatch:
    """Whether two values are the first `count` elements of `x` along its last dim, and the others."""
    return _both(take_range(m, first, x, 0, count, size), take_range(m, rest, x, count, size, size))


def are_private(m: Match, ops: Taken) -> Mismatch | None:
    """Why operations that are read beside a pattern would stay: another user; None if none has one."""
    inside = {*ops, *m.ops}
    for op in ops:
        for result in op.results:
            for user in result.users:
                if user not in inside:
                    return m.fail(f"{op.name} has another user, {user.name}", result, user)
    return None


def _both(left: Taken | Mismatch, right: Taken | Mismatch) -> Taken | Mismatch:
    if isinstance(left, Mismatch):
        return left
    return right if isinstance(right, Mismatch) else tuple(dict.fromkeys((*left, *right)))
