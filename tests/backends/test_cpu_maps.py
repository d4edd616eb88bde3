"""Maps as the cpu target plans them: operands that lie another way round, results past the caches, shapes of a run."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright.backends.cpu import plan_map
from tilewright.backends.cpu.executable import CpuExecutable
from tilewright.backends.cpu.machine import machine
from tilewright.graph.dtypes import f32
from tilewright.graph.module import Module

random = np.random.default_rng(21)


def sum_with_transposed(rows: int | str, columns: int | str) -> Module:
    b = tilewright.Builder("sum")
    turned = b.transpose(b.input("y", f32[columns, rows]), perm=[1, 0])
    b.output(b.input("x", f32[rows, columns]) + turned, "z")
    return b.build()


def kernels_of(executable: object) -> dict[str, int]:
    assert isinstance(executable, CpuExecutable)
    kernels: dict[str, int] = executable.report()["kernels"]
    return kernels


@pytest.mark.parametrize(("rows", "columns", "turns"), [(200, 130, 2), (20, 13, 1), (16384, 2, 0)])
def test_a_large_operand_that_lies_the_other_way_round_is_turned(rows: int, columns: int, turns: int) -> None:
    """The sum takes the order of the transposed operand, so it is turned in any case, if both sides are long enough."""
    executable = tilewright.compile(sum_with_transposed(rows, columns), target="cpu", threads=1)
    x, y = (random.standard_normal(shape, np.float32) for shape in ((rows, columns), (columns, rows)))
    [z] = executable.run({"x": x, "y": y}).values()
    assert np.array_equal(z, x + y.T)
    assert kernels_of(executable).get("turn", 0) == turns


def test_sizes_of_a_run_decide_whether_it_is() -> None:
    executable = tilewright.compile(sum_with_transposed("rows", "columns"), target="cpu", threads=2)
    for rows, columns in ((20, 13), (200, 130), (131, 257), (3, 40)):
        x, y = (random.standard_normal(shape, np.float32) for shape in ((rows, columns), (columns, rows)))
        [z] = executable.run({"x": x, "y": y}).values()
        assert np.array_equal(z, x + y.T)


def test_elements_a_step_apart_are_gathered() -> None:
    b = tilewright.Builder("every second")
    x = b.input("x", f32[200, 400])
    part = b.slice(x, np.int64([0]), np.int64([400]), np.int64([1]), np.int64([2]))
    b.output(b.exp(part), "y")
    executable = tilewright.compile(b.build(), target="cpu", threads=1)
    given = random.standard_normal((200, 400), np.float32)
    [y] = executable.run({"x": given}).values()
    np.testing.assert_allclose(y, np.exp(given[:, ::2]), rtol=1e-6)
    assert not {"turn", "copy"} & set(kernels_of(executable))


def test_large_results_go_past_the_caches_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turned, mapped and normalized, in shapes that decide it when they are planned."""
    monkeypatch.setattr(type(machine()), "streamed_bytes", 1 << 12)
    asked: list[bool] = []
    streams = plan_map._streams
    monkeypatch.setattr(plan_map, "_streams", lambda *given: asked.append(streams(*given)) or asked[-1])
    b = tilewright.Builder("large")
    x = b.input("x", f32["rows", "columns"])
    y = b.softmax(b.transpose(x, perm=[1, 0]), axis=-1)
    b.output(y, "y")
    b.output(b.exp(x), "z")
    executable = tilewright.compile(b.build(), target="cpu", threads=2)
    for rows, columns in ((4160, 24), (4160, 8), (77, 80)):
        given = random.standard_normal((rows, columns), np.float32)
        found = executable.run({"x": given})
        e = np.exp(given.T.astype(np.float64))
        np.testing.assert_allclose(found["y"], e / e.sum(-1, keepdims=True), rtol=1e-5)
        np.testing.assert_allclose(found["z"], np.exp(given), rtol=1e-6)
    assert any(asked)
