"""ReverseSequence on the cpu target: slices and single elements, both orders of the axes, lengths out of range."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright.graph.diagnostics import ExecutionError
from tilewright.graph.dtypes import f32, i64


def reversed_in(x: np.ndarray, lengths: np.ndarray, time: int) -> np.ndarray:
    result = x.copy()
    for place, length in enumerate(lengths):
        part, source = (np.moveaxis(array, (time, 1 - time), (0, 1))[:, place] for array in (result, x))
        part[:length] = source[:length][::-1]
    return result


@pytest.mark.parametrize("time", [0, 1])
@pytest.mark.parametrize("rest", [(), (3,), (2, 17)], ids=str)
def test_against_numpy(time: int, rest: tuple[int, ...]) -> None:
    shape = (6, 4) if time == 0 else (4, 6)
    x = np.random.default_rng(0).random((*shape, *rest)).astype(np.float32)
    b = tilewright.Builder("reversed", opset=20)
    operands = b.input("x", f32[x.shape]), b.input("n", i64[4])
    b.output(b.reverse_sequence(*operands, time_axis=time, batch_axis=1 - time), "y")
    executable = tilewright.compile(b.build(), target="cpu", threads=1)
    assert not executable.report()["host_steps"]
    for lengths in ([6, 5, 1, 2], [0, 6, 3, 4]):
        got = executable.run({"x": x, "n": np.array(lengths)})["y"]
        np.testing.assert_array_equal(got, reversed_in(x, np.array(lengths), time))
    for wrong in (7, -1):
        with pytest.raises(ExecutionError):
            executable.run({"x": x, "n": np.array([1, wrong, 2, 3])})
