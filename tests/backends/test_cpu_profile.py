"""Where the time of a run goes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
from click.testing import CliRunner

import tilewright
from tilewright import Builder, f32, i64, save
from tilewright.graph import dtypes
from tilewright.tools.profile_model import profile


def model(width: int = 8) -> tilewright.Module:
    b = Builder("model")
    x = b.input("x", f32["n", width])
    y = b.relu(x @ np.ones((width, 4), np.float32))
    b.output(b.softmax(y, axis=-1), "y")
    return b.build()


def test_each_call_is_timed_and_named() -> None:
    executable = tilewright.compile(model(), target="cpu", threads=1)
    rows = executable.profile({"x": np.ones((3, 8), np.float32)}, runs=3)
    assert [row.kernel.split("_")[0] for row in rows] == ["gemm", "softmax"]
    assert all(row.seconds > 0 and not row.is_host_step for row in rows)
    assert rows[0].types == "f32[3, 8], f32[8, 4] -> f32[3, 4]"
    assert all(re.fullmatch(r'"[^"]+":\d+(, "[^"]+":\d+)*', row.place) for row in rows), rows
    assert executable.run({"x": np.ones((3, 8), np.float32)})["y"].shape == (3, 4)
    title, head, *lines = str(rows).splitlines()
    assert title.startswith("2 steps, ")
    assert head.split() == ["ms", "%", "Gop/s", "kernel,", "types,", "place"]
    assert len(lines) == 2
    assert any("f32[3, 8], f32[8, 4] -> f32[3, 4]" in line for line in lines)


def test_sizes_of_the_run_that_no_input_names() -> None:
    """Plans for other sizes are made from a trace: what it counted follows from these sizes too."""
    b = Builder("model")
    x, count = b.input("x", f32["n", 8]), b.input("count", i64[1])
    rows = b.expand(b.relu(x), b.concat(count, [8], axis=0))
    b.output(b.softmax(rows @ np.ones((8, 4), np.float32), axis=-1), "y")
    executable = tilewright.compile(b.build(), target="cpu", threads=1)
    for size in (3, 17, 50):
        feeds = {"x": np.ones((size, 8), np.float32), "count": np.array([size])}
        found = {row.kernel.split("_")[0]: row for row in executable.profile(feeds, runs=1)}
        assert found["gemm"].types == f"f32[{size}, 8], f32[8, 4] -> f32[{size}, 4]"
        assert found["softmax"].types == f"f32[{size}, 4] -> f32[{size}, 4]"
        assert found["gemm"].operations == 2 * size * 8 * 4


def test_host_steps_are_timed_too() -> None:
    b = Builder("words")
    x = b.input("x", dtypes.string["n"])
    b.output(b.string_concat(x, x), "y")
    executable = tilewright.compile(b.build(), target="cpu")
    (row,) = executable.profile({"x": np.array(["a", "b"], object)}, runs=2)
    assert row.is_host_step
    assert row.kernel == "string_concat"
    assert row.seconds > 0


def test_what_is_made_of_kernels_when_it_runs_is_no_host_step() -> None:
    b = Builder("diagonal")
    b.output(b.einsum(b.input("x", f32["n", "n"]), equation="ii->i"), "y")
    executable = tilewright.compile(b.build(), target="cpu")
    (row,) = executable.profile({"x": np.ones((3, 3), np.float32)}, runs=2)
    assert row.kernel == "einsum"
    assert not row.is_host_step
    assert executable.report()["host_steps"] == []


def test_command(tmp_path: Path) -> None:
    save(model(), tmp_path / "model.onnx")
    done = CliRunner().invoke(profile, [str(tmp_path / "model.onnx"), "--dim", "n=5", "--runs", "2"])
    assert done.exit_code == 0, done.output
    assert "gemm" in done.output
    done = CliRunner().invoke(profile, [str(tmp_path / "model.onnx"), "--dim", "n=5", "--runs", "2", "--json"])
    assert [step["kernel"].split("_")[0] for step in json.loads(done.output)["steps"]] == ["gemm", "softmax"]
