"""Kernels whose results are as large as the data say: how many elements there are is counted while they are found.

`result_shapes` gives the most that there can be. The kernel writes what it found densely at the front of that room, and
how much it was as its last result; whoever runs it cuts the others to that size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..opdef import op
from .kernel_base import KernelOp, Known

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
