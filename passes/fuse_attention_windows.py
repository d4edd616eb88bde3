"""Attention in windows (Liu et al. 2021, arXiv 2103.14030) whose mask is added with batch and windows apart.

The scores are [batch * windows, heads, queries, keys]. To add a mask for each window they are reshaped to [batch,
windows, heads, queries, keys] and back; the attention takes the mask repeated for each image instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..graph.core import Operation, Value
from ..graph.dims import prove_equal
from .fuse_attention_views import shape_of
from .proofs import same_dims

if TYPE_CHECKING:
    from ..graph.builder import OpBuilder
    from ..graph.dims import Dim
    from .fuse_attention_scores import Term


@dataclass(frozen=True)
class Windows:
    """`split` takes batch and windows apart; `count` is the number of windows in an image, `batch` that of images if it
    is known; `query` is the left factor of the scores."""

    split: Operation
    count: int
    batch: int | None
    query: Value


def find_windows(product: Operation, ops: Sequence[Operation]) -> Windows | None:
    """The windows that `ops`, from the product of queries and keys to the softmax, take apart and put together again.

    None if they do not, or reshape the scores in another way.
    """
    own, query = shape_of(product.results[0]), product.operands[0]
    if own is None or len(own) != 4 or query is None:
        return None
    split: Operation | None = None
    apart = False
    for op in ops:
        if op.name != "reshape":
            continue
        shape = shape_of(op.results[0])
        if shape is None or len(shape) != (4 if apart else 5) or not same_dims(shape[-3:], own[-3:]):
            return None
        if not apart and split is not None:
            return None
        split = split or op
        apart = not apart
    if split is None or apart:
        return None
    dims = shape_of(split.results[0])
    assert dims is not None
    batch, count = dims[0], dims[1]
    if not isinstance(count, int) or count < 1:
        return None
    if isinstance(own[0], int):
        batch = own[0] // count
    return Windows(split, count, batch if isinstance(batch, int) else None, query)


def mask_objection(windows: Windows, value: Value, may_add: bool) -> str | None:
    """Why a mask for [batch, windows, heads, queries, keys] cannot be made one for the attention; None if it can.

    `may_add`: operations that find out the number of images may be added.
    """
    dims = _five(value)
    if dims is None:
        return "the rank of the mask is not known"
    batch, count, *rest = dims
    if batch == count == 1:
        return None
    if not all(isinstance(dim, int) for dim in rest):
        return "the mask of a window is of unknown size"
    if count != windows.count:
        return "the mask has not one part for each window"
    images = (shape_of(windows.split.results[0]) or (0,))[0]
    if batch != 1 and prove_equal(batch, images) is not True:
        return "the mask has not one part for each image"
    if batch == 1 and windows.batch is None and not may_add:
        return "to repeat the mask for each image takes more operations than the reshapes of the scores"
    return None


def for_batch_of_windows(b: OpBuilder, term: Term, windows: Windows) -> Term:
    """A mask for [batch, windows, heads, queries, keys] as one for [batch * windows, heads, queries, keys]."""
    value = term.value
    dims, rank = _five(value), len(shape_of(value) or ())
    assert dims is not None
    batch, count, *rest = dims
    if batch == 1 and (count == 1 or windows.batch == 1):
        return replace(term, value=b.squeeze(value, [0]) if rank == 5 else value)
    if batch == 1:
        if windows.batch is not None:
            value = b.expand(value, [windows.batch, windows.count, 1, 1, 1])
        else:
            images = b.div(b.shape(windows.query, start=0, end=1), [windows.count])
            value = b.expand(value, b.concat(images, [windows.count, 1, 1, 1], axis=0))
    sizes = [dim if isinstance(dim, int) else -1 for dim in rest]
    return replace(term, value=b.reshape(value, [-1, *sizes]))


def _five(value: Value) -> tuple[Dim, ...] | None:
    """The dims of a mask as they are broadcast to five."""
    shape = shape_of(value)
    return None if shape is None or len(shape) > 5 else (*(1,) * (5 - len(shape)), *shape)
