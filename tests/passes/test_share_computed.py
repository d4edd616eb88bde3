"""share-initializers on constants that follow from others in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tilewright import PassManager
from tilewright.graph.data import MappedData, MappedFile, TensorData, derived
from tilewright.graph.dtypes import f32
from tilewright.graph.model_builder import Builder


def test_computed_constants_are_computed_only_where_they_may_be_equal(tmp_path: Path) -> None:
    numbers = np.arange(2 << 14, dtype=np.float32)
    (tmp_path / "numbers").write_bytes(numbers.tobytes())
    file = MappedFile.open(tmp_path / "numbers")
    calls: list[int] = []

    def half(index: int, factor: float) -> TensorData:
        def scale(array: np.ndarray) -> np.ndarray:
            calls.append(index)
            return array * np.float32(factor)

        stored = MappedData(file, index << 16, 1 << 16, f32, (1 << 14,))
        return derived(scale, stored, dtype=f32, shape=(1 << 14,))

    b = Builder("model")
    x = b.input("x", f32[1 << 14])
    parts = [half(0, 2.0), half(0, 2.0), half(0, 3.0), half(1, 2.0)]
    for index, part in enumerate(parts):
        b.output(x * b.const(part), f"y{index}")
    model = b.build()
    PassManager.parse("share-initializers").run(model)
    weights = [op.operands[1] for op in model.main.block if op.name == "mul"]
    assert weights[0] is weights[1]
    assert len(set(weights)) == 3
    assert 1 not in calls
