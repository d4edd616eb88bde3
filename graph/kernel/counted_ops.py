"""Kernels whose results are as large as the data say: how many elements there are is counted while they are found.

`result_shapes` gives the most that there can be. The kernel writes what it found densely at the front of that room, and
how much it was as its last result; whoever runs it cuts the others to that size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .. import opdef
from ..opdef import op
from ..ops.unique_numeric import unique_rows
from .kernel_base import KernelOp, Known
from .tracing import apply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core import Operation
    from .strided import Shape


class Counted(KernelOp):
    """`counted` has, for each result whose size is only counted, the dim that it is of."""

    def fixed_count(self, op: Operation) -> int:
        return len(op.operands)


@op("nonzero", domain="kernel")
class NonZero(Counted):
    """The places of elements that are not zero (NaN is not), [rank, count] i64 in row-major order."""

    inputs = ("x",)
    outputs = ("places", "count")
    counted: ClassVar[dict[int, int]] = {0: 1}

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        return [(len(shapes[0]), math.prod(shapes[0])), ()]

    def compute(self, op: Operation, *operands: Any) -> Any:
        places = np.stack(np.nonzero(operands[0])).astype(np.int64)
        return places, np.array(places.shape[1], np.int64)


@op("suppress", domain="kernel")
class Suppress(Counted):
    """[count, 3] of (batch, class, box), as ONNX's NonMaxSuppression chooses them; no class has more than `most`."""

    inputs = ("boxes", "scores", "limit?", "overlap?", "least?")
    outputs = ("chosen", "count")
    attributes: ClassVar[dict[str, Any]] = {"center_point_box": 0, "most": 2**62}
    counted: ClassVar[dict[int, int]] = {0: 0}

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        boxes, scores = shapes[:2]
        if boxes[::2] != (scores[0], 4) or boxes[1] != scores[2]:
            raise ValueError(f"scores {list(scores)} of boxes {list(boxes)}, not [batches, classes, {boxes[1]}]")
        return [(scores[0] * scores[1] * self.most(op, boxes[1]), 3), ()]

    def most(self, op: Operation, boxes: int) -> int:
        """How many of so many boxes one class may keep."""
        most: int = apply(min, boxes, max(0, int(op.attr("most"))))
        return most

    def compute(self, op: Operation, *operands: Any) -> Any:
        chosen = opdef.lookup("", "NonMaxSuppression").evaluate(op, *operands)
        return chosen, np.array(len(chosen), np.int64)


@op("unique", domain="kernel")
class Unique(Counted):
    """The different rows of a matrix, in ascending order if `sorted`, else in the order in which they come: where each
    is first, which one each row is, and how often each is there. NaNs are alike."""

    inputs = ("x",)
    outputs = ("first", "inverse", "counts", "count")
    attributes: ClassVar[dict[str, Any]] = {"sorted": 1}
    counted: ClassVar[dict[int, int]] = {0: 0, 2: 0}

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        rows = shapes[0][0]
        return [(rows,), (rows,), (rows,), ()]

    def compute(self, op: Operation, *operands: Any) -> Any:
        first, inverse, counts = unique_rows(operands[0], bool(op.attr("sorted")))
        return first, inverse, counts, np.array(len(first), np.int64)
