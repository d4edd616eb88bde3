"""Kernels of linear algebra beyond products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..opdef import Trait, op
from .index_ops import AsInOnnx
from .kernel_base import Known

if TYPE_CHECKING:
    from ..core import Operation
    from .strided import Shape


@op("determinant", domain="kernel")
class Determinant(AsInOnnx):
    """The determinant of each matrix [..., m, m]."""

    onnx = "Det"
    inputs = ("x",)
    traits = frozenset({Trait.REDUCTION})

    def result_shapes(self, op: Operation, shapes: Sequence[Shape], known: Known) -> list[Shape]:
        if len(shapes[0]) < 2 or shapes[0][-1] != shapes[0][-2]:
            raise ValueError(f"{list(shapes[0])} are no square matrices")
        return [shapes[0][:-2]]
