"""Calls of the public interface with arguments of the wrong kind: one clear error, before anything is done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright import Builder, Module, f32
from tilewright.graph.diagnostics import UsageError


def network() -> Module:
    b = Builder()
    b.output(b.identity(b.input("x", f32["n", 4])) * np.float32(2), "y")
    return b.build()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: tilewright.parse(3), "text must be IR text, as str(module) gives it, not int"),
        (lambda m: tilewright.parse(str(m), weights=3), "weights must be a Module or a folder, not int"),
        (lambda m: tilewright.optimize(m, passes=3), 'passes must be a pipeline such as "fold,cse,dce"'),
        (lambda m: tilewright.optimize(m, passes=["dce", 3]), "an item of passes must be"),
        (lambda m: tilewright.optimize(m, level="2"), "level must be a number from 0 to 3, not str"),
        (lambda m: tilewright.optimize(m, level=True), "level must be a number from 0 to 3, not bool"),
        (lambda m: tilewright.optimize(m, opset="17"), "opset must be the version of an opset, not str"),
        (lambda m: tilewright.optimize(m, dims=["n"]), "dims must be a dict of sizes by the name of a dim, not list"),
        (lambda m: tilewright.optimize(m, shapes={"x": 3}), "the shape of x must be a list of sizes, not int"),
        (lambda m: tilewright.save(m, None), "path must be the name of a file, not NoneType"),
        (lambda m: tilewright.save(m, "x.onnx", opset="17"), "opset must be the version of an opset, not str"),
        (lambda m: tilewright.compile(m, threads="2"), "threads must be a number of threads, not str"),
        (lambda m: tilewright.compile(m, threads=10**9), "threads must be at least 1 and at most 1024, got 1000000000"),
        (lambda m: tilewright.compile(m).run([1]), "feeds must be a dict of arrays by input name, not list"),
        (lambda m: tilewright.parity(m, m, feeds=[1]), "feeds must be a dict of arrays by input name, not list"),
        (lambda m: tilewright.parity(m, m, runs="2"), "runs must be a number of runs, not str"),
        (lambda m: tilewright.PassManager.parse(3), 'passes must be a pipeline such as "fold,cse,dce"'),
        (lambda m: tilewright.gradient(m, of=3, wrt=["x"]), "of must be the name of a tensor, not int"),
    ],
)
def test_the_argument_is_named(
    call: Callable[[Module], Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = network()
    before = str(module)
    with pytest.raises(UsageError) as error:
        call(module)
    assert message in str(error.value)
    assert str(module) == before
    assert not list(tmp_path.iterdir())


def test_passes_may_be_a_list() -> None:
    report = tilewright.optimize(network(), passes=["remove-identity", "repeat{cse,dce}"])
    assert report.pipeline.pipeline == "remove-identity,repeat{cse,dce}"
    assert report.after.operators == {"Mul": 1}
    assert str(tilewright.PassManager.parse(["fold", "cse"])) == "fold,cse"
    assert tilewright.optimize(network(), passes=[]).after.nodes == 2


def test_one_name_may_stand_for_a_list_of_one() -> None:
    report = tilewright.optimize(network(), outputs="y", inputs="x")
    assert report.module.main.output_names == ("y",)
