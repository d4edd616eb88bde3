"""`tilewright optimize`: what it writes, what it reports, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright
from tilewright import Builder, Module, f32
from tilewright.backends import onnxruntime_oracle
from tilewright.graph.opdef import lookup
from tilewright.importers.onnx.node_counts import count_operators
from tilewright.passes import registry
from tilewright.passes.base import Pass
from tilewright.passes.context import PassContext
from tilewright.passes.ledger import ledger_of
from tilewright.passes.trace import read_trace
from tilewright.tools._remarks import grouped


@dataclass(frozen=True)
class Spoil(Pass):
    """Make every relu a softplus: what a faulty pass might do."""

    name = "spoil"

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for op in module.walk():
            if op.name == "relu" and context.may_apply:
                with context.rewrite(module, "relu-to-softplus", op) as rewriter:
                    new = rewriter.before(op).create(lookup("", "Softplus"), op.operands)
                    rewriter.replace(op, new.results)
                changed = True
        return changed


@pytest.fixture
def spoil() -> Iterator[str]:
    registry.register(Spoil)
    yield Spoil.name
    registry.unregister(Spoil.name)


def operators(path: Path) -> list[str]:
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    return [node.op_type for node in proto.graph.node]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_writes_a_smaller_model_beside_the_original(command: Callable[..., Any], model: Path) -> None:
    done = command("optimize", model)
    assert done.code == 0, done.err
    assert operators(model.with_name("small.opt.onnx")) == ["MatMul", "Relu", "MatMul"]
    assert files(model.parent) == {"small.onnx", "small.opt.onnx"}
    assert "Identity" in done.out
    assert "agrees" in done.out
    assert "batch=1; batch=2" in done.out
    assert f"wrote    {model.with_name('small.opt.onnx')}" in done.out


def test_may_replace_the_model_it_read(command: Callable[..., Any], model: Path) -> None:
    os.chmod(model, 0o640)
    assert command("optimize", model, "-o", model).code == 0
    assert operators(model) == ["MatMul", "Relu", "MatMul"]
    assert files(model.parent) == {"small.onnx"}
    if sys.platform != "win32":
        assert model.stat().st_mode & 0o777 == 0o640


def test_json_is_one_document(command: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((5, 4), np.float32))
    out = tmp_path / "out.onnx"
    done = command("optimize", model, "-o", out, "--json", "--input", f"x={tmp_path / 'x.npy'}", "--runs", "1")
    report = json.loads(done.out)
    assert done.err == ""
    assert report["output"] == str(out)
    assert report["nodes"] == {"before": 4, "after": 3}
    assert report["operators"]["Identity"] == {"before": 1, "after": 0}
    assert report["file_bytes"]["after"] == out.stat().st_size < report["file_bytes"]["before"]
    assert report["parity"]["passed"]
    assert [run["outputs"][0]["type"] for run in report["parity"]["runs"]] == ["f32[1, 3]", "f32[5, 3]"]


def test_failed_parity_writes_nothing(command: Callable[..., Any], model: Path, spoil: str) -> None:
    out = model.with_name("out.onnx")
    out.write_bytes(b"precious")
    done = command("optimize", model, "-o", out, "--passes", spoil)
    assert done.code == 1
    assert "differs: y: the largest difference is at" in done.out
    assert "wrote    nothing" in done.out
    assert out.read_bytes() == b"precious"
    assert files(model.parent) == {"small.onnx", "out.onnx"}


def test_a_tolerance_is_the_users_to_give(command: Callable[..., Any], model: Path, spoil: str) -> None:
    out = model.with_name("out.onnx")
    done = command("optimize", model, "-o", out, "--passes", spoil, "--rtol", "1e9", "--json")
    assert done.code == 0
    assert json.loads(done.out)["parity"]["runs"][0]["outputs"][0]["tolerance"] == 1e9
    assert out.exists()


def test_bisect_names_the_culprit(command: Callable[..., Any], model: Path, spoil: str) -> None:
    done = command("optimize", model, "--passes", f"remove-identity,{spoil},dce", "--bisect", "--json")
    assert done.code == 1
    report = json.loads(done.out)
    assert report["output"] is None
    assert "relu-to-softplus" in report["culprit"]
    assert "passes before it: remove-identity" in report["culprit"]


def test_no_parity_does_not_check(command: Callable[..., Any], model: Path, spoil: str) -> None:
    out = model.with_name("out.onnx")
    assert command("optimize", model, "-o", out, "--passes", spoil, "--no-parity").code == 0
    assert operators(out) == ["MatMul", "Softplus", "Identity", "MatMul"]


def test_a_check_that_is_not_possible(command: Callable[..., Any], tmp_path: Path) -> None:
    b = Builder()
    b.output(b.reshape(b.input("x", f32["n"]), [1234567, -1]), "y")
    path, out = tmp_path / "odd.onnx", tmp_path / "out.onnx"
    tilewright.save(b.build(), path)
    done = command("optimize", path, "-o", out, "--require-parity")
    assert done.code == 1
    assert not out.exists()
    done = command("optimize", path, "-o", out)
    assert done.code == 0
    assert "not checked" in done.out
    assert out.exists()


def test_without_onnxruntime_one_line_says_so(
    command: Callable[..., Any], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime_oracle, "is_available", lambda: False)
    done = command("optimize", model)
    assert done.code == 0
    assert done.out.count("ONNX Runtime is not installed, so the reference interpreter ran the models") == 1


def test_dims_are_bound(command: Callable[..., Any], model: Path) -> None:
    for option in (["--dim", "batch=3"], ["--input-shape", "x:3,4"]):
        done = command("optimize", model, "-o", model.with_name("bound.onnx"), *option)
        assert done.code == 0, done.err
        assert "agrees" in done.out
        proto = onnx.load(model.with_name("bound.onnx"))
        for port in (proto.graph.input[0], proto.graph.output[0]):
            assert port.type.tensor_type.shape.dim[0].dim_value == 3


def test_a_part_is_cut_out_and_checked(command: Callable[..., Any], model: Path) -> None:
    out = model.with_name("part.onnx")
    done = command("optimize", model, "-o", out, "--inputs", "kept", "--require-parity")
    assert done.code == 0, done.err
    assert operators(out) == ["MatMul"]
    assert [port.name for port in onnx.load(out).graph.input] == ["kept"]
    assert "the part of the original" in done.out


def test_opset_shapes_and_target(command: Callable[..., Any], model: Path) -> None:
    out = model.with_name("out.onnx")
    assert command("optimize", model, "-o", out, "--opset", "21", "--with-shapes").code == 0
    proto = onnx.load(out)
    assert proto.opset_import[0].version == 21
    assert len(proto.graph.value_info) == 2


def test_trace_and_printed_ir(command: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    done = command("optimize", model, "--trace", trace, "--print-ir-after-all", "--passes", "remove-identity,dce")
    assert done.code == 0
    assert done.err.count("// ---- after") == 2
    assert {"trace.jsonl", "000-input.tw", "001-remove-identity.tw"} <= files(trace)


def test_ledger(command: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    done = command("optimize", model, "--ledger", "--json", "--trace", trace, "--passes", "remove-identity,dce")
    ledger = json.loads(done.out)["ledger"]
    assert (ledger["before"]["operations"], ledger["after"]["operations"]) == (4, 3)
    assert [row["pass"] for row in ledger["passes"]] == ["remove-identity"]
    assert ledger == ledger_of(read_trace(trace)).to_dict()
    shown = command("optimize", model, "--ledger")
    assert "infer-shapes" not in shown.out
    assert "remove-identity" in shown.out
    assert "moved, fused" in shown.out
    assert "ledger" not in json.loads(command("optimize", model, "--json").out)
    without = json.loads(command("optimize", model, "--ledger", "--json", "-O", "0").out)["ledger"]
    assert (without["before"]["operations"], without["after"]["operations"], without["passes"]) == (4, 4, [])


def test_external_data_moves_along(command: Callable[..., Any], tmp_path: Path) -> None:
    b = Builder()
    x = b.input("x", f32[1, 64])
    b.output(b.identity(x @ np.ones((64, 64), np.float32)), "y")
    path = tmp_path / "model.onnx"
    tilewright.save(b.build(), path, external=True)
    assert files(tmp_path) == {"model.onnx", "model.onnx.data"}
    done = command("optimize", path, "-o", path, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["file_bytes"]["before"] > 64 * 64 * 4
    assert tilewright.load(path).main.output_names == ("y",)


@pytest.mark.skipif(not Path("/dev/null").exists(), reason="this system has no /dev/null")
def test_a_device_is_not_replaced(command: Callable[..., Any], model: Path) -> None:
    assert command("optimize", model, "-o", "/dev/null").code == 0
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-O1", "--passes", "dce"], "-O and --passes exclude each other"),
        (["-O7"], "7 is not in the range"),
        (["--no-parity", "--require-parity"], "--require-parity has no use with --no-parity"),
        (["--no-parity", "--rtol", "0.1"], "--rtol has no use with --no-parity"),
        (["--rtol", "-1"], "-1.0 is not in the range"),
        (["--no-parity", "--input", "x=1"], "--input has no use with --no-parity"),
        (["-o", "."], "the output . is a folder"),
        (["-o", "nowhere/out.onnx"], "the folder of the output, nowhere, does not exist"),
        (["--dim", "batch"], "a dim is given as NAME=SIZE, not 'batch'"),
        (["--dim", "batch=-1"], "the size of the dim 'batch' cannot be negative, but is -1"),
        (["--dim", "height=3"], "no input has a dim called 'height'"),
        (["--input-shape", "x:3"], "[3] has another rank"),
        (["--input-shape", "x:3,5"], "dim 1 of the input 'x' is 4 already, not 5"),
        (["--outputs", "kapt"], "did you mean kept?"),
        (["--outputs", "zork"], "its tensors are y, x, "),
        (["--passes", "fuse-all"], "there is no pass called 'fuse-all'"),
        (["--opset", "99"], "there is no opset 99"),
        (["-o", "text.tw"], "text.tw is a name for IR text"),
        (["--input", "x"], "an input is given as NAME=FILE.npy or NAME=VALUE"),
        (["--input", "x=missing.npy"], "error[file/missing]: there is no file missing.npy"),
        (["-o", "nowhere/"], "the output nowhere/ is a folder that does not exist"),
        (["--trace", "small.onnx"], "--trace small.onnx is a file, not a folder"),
        (["--input", "z=1"], "the model has no input 'z'"),
        (["--input", "x=[1,2]"], "the given array has rank 1"),
    ],
)
def test_what_makes_no_sense_is_refused(
    command: Callable[..., Any], model: Path, options: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    done = command("optimize", model, *options)
    assert done.code == 2
    assert message in done.err
    assert done.out == ""
    assert files(model.parent) == {"small.onnx"}


@pytest.mark.parametrize("content", [b"", b"hello", b"\x08\x08\x3a\xff\xff\xff\xff\x0f"])
def test_bad_files(command: Callable[..., Any], tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    done = command("optimize", path)
    assert done.code == 2
    assert done.err.startswith("error[")
    assert files(tmp_path) == {"bad.onnx"}
    assert command("optimize", tmp_path / "missing.onnx").code == 2
    assert "is a folder" in command("optimize", tmp_path).err


def test_runs_as_a_script_and_as_a_module(model: Path, tmp_path: Path) -> None:
    script = Path(tilewright.__file__).parent / "tools" / "optimize.py"
    ways = [[str(script)], ["-m", "tilewright", "optimize"]]
    for number, way in enumerate(ways):
        out = tmp_path / f"{number}.onnx"
        command = [sys.executable, *way, str(model), "-o", str(out), "--no-parity"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert out.exists()
    assert (tmp_path / "0.onnx").read_bytes() == (tmp_path / "1.onnx").read_bytes()


def test_optimize_in_python(model: Path) -> None:
    module = tilewright.load(model)
    report = tilewright.optimize(module)
    assert report.module is module
    assert (report.level, report.after.nodes) == (2, 3)
    assert tilewright.optimize(model, passes="dce").level is None
    assert tilewright.optimize(model, level=0).after.nodes == 4
    bound = tilewright.optimize(model, dims={"batch": 2}, outputs=["kept"]).module
    assert str(bound.main.inputs[0].type) == "f32[2, 4]"
    assert bound.main.output_names == ("kept",)
    shutil.copy(model, model.with_name("copy.onnx"))
    assert tilewright.parity(model.with_name("copy.onnx"), module).passed


def test_the_table_counts_what_is_written(tmp_path: Path) -> None:
    """HardSigmoid times x is one operator in memory, but opset 11 has no HardSwish."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    nodes = [
        helper.make_node("HardSigmoid", ["x"], ["h"], alpha=1 / 6, beta=0.5),
        helper.make_node("Mul", ["x", "h"], ["y"]),
    ]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 11)])
    model.ir_version = 6
    path, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(model, path)
    result = subprocess.run(
        [sys.executable, "-m", "tilewright", "optimize", str(path), "-o", str(out), "--no-parity", "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    written = onnx.load(out)
    assert json.loads(result.stdout)["nodes"]["after"] == len(written.graph.node)
    assert tilewright.optimize(path).after.operators == count_operators(written)
    assert tilewright.optimize(path, passes="O2").after.operators == count_operators(written)
    assert tilewright.optimize(path, opset=14).after.operators == {"HardSwish": 1}


def attention_model(path: Path, axis: int = -1, opset: int = 18) -> Path:
    """Attention, written out; over the queries instead of the keys where `axis` says so. And a Gelu."""
    b = Builder(opset=opset)
    q, k, v = (b.input(name, f32[1, 2, 4, 4]) for name in "qkv")
    scores = b.mul(b.matmul(q, b.transpose(k, perm=[0, 1, 3, 2])), np.float32(0.5))
    x = b.matmul(b.softmax(scores, axis=axis), v)
    gate = b.add(b.erf(b.div(x, np.float32(2**0.5))), np.float32(1.0))
    b.output(b.mul(b.mul(x, gate), np.float32(0.5)), "y")
    tilewright.save(b.build(), path)
    return path


def test_remarks_list_fusions(command: Callable[..., Any], tmp_path: Path) -> None:
    done = command("optimize", attention_model(tmp_path / "a.onnx"), "--remarks")
    assert done.code == 0, done.err
    assert "fused: 2" in done.out
    assert "recompose-gelu-erf" in done.out
    assert "near misses" not in done.out


def test_a_near_miss_of_attention_is_reported_in_one_line_unasked(command: Callable[..., Any], tmp_path: Path) -> None:
    done = command("optimize", attention_model(tmp_path / "a.onnx", axis=-2))
    assert done.code == 0, done.err
    (line,) = [line for line in done.out.splitlines() if "attention is not fused" in line]
    assert "the softmax runs over axis -2, not over the keys" in line
    assert "#" in line
    assert "recompose-gelu-erf" not in done.out


def test_equal_near_misses_are_one_row_with_a_count() -> None:
    rows = [("attention", "no mask", "a"), ("gelu", "no mask", "b"), ("attention", "no mask", "c")]
    assert grouped(rows) == [("attention", "no mask", "a; 2 places"), ("gelu", "no mask", "b")]


def test_remarks_as_json(command: Callable[..., Any], tmp_path: Path) -> None:
    path = attention_model(tmp_path / "a.onnx", axis=-2)
    remarks = json.loads(command("optimize", path, "--remarks", "--json").out)["remarks"]
    assert [fusion["rule"] for fusion in remarks["fusions"]] == ["recompose-gelu-erf"]
    (missed,) = [miss for miss in remarks["near_misses"] if miss["rule"] == "attention"]
    assert missed["reason"] == "the softmax runs over axis -2, not over the keys"
    assert "#" in missed["location"]
    assert "remarks" not in json.loads(command("optimize", path, "--json").out)


def test_fused_operators_are_kept_on_demand(command: Callable[..., Any], tmp_path: Path) -> None:
    b = Builder(opset=24)
    x = b.input("x", f32["n", 8])
    b.output(b.mul(x, b.sigmoid(x)), "y")
    path, out = tmp_path / "swish.onnx", tmp_path / "out.onnx"
    tilewright.save(b.build(), path)
    done = command("optimize", path, "-o", out, "--remarks")
    assert operators(out) == ["Sigmoid", "Mul"]
    assert "Swish is written as its parts: ONNX Runtime has no kernel of it" in " ".join(done.out.split())
    done = command("optimize", path, "-o", out, "--keep-fused")
    assert done.code == 0, done.err
    assert operators(out) == ["Swish"]


def test_fused_operators_become_functions_on_demand(command: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    done = command("optimize", attention_model(tmp_path / "a.onnx"), "-o", out, "--functions", "--require-parity")
    assert done.code == 0, done.err
    proto = onnx.load(out)
    assert sorted(function.name for function in proto.functions) == ["Attention", "Gelu"]
    assert sorted(operators(out)) == ["Attention", "Gelu"]
    bodies = sum(node.op_type != "Constant" for function in proto.functions for node in function.node)
    assert re.search(r"in the graph itself\W+2\b", done.out)
    assert re.search(rf"in bodies of functions\W+{bodies}\b", done.out)


def test_the_target_onnxruntime(command: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    b = Builder(opset=20)
    x = b.input("x", f32["n", 8])
    b.output(b.gelu(b.add(x, np.ones(8, np.float32))), "y")
    tilewright.save(b.build(), tmp_path / "in.onnx")
    done = command("optimize", tmp_path / "in.onnx", "-o", out, "--target", "onnxruntime", "--require-parity", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["operators"]["com.microsoft::BiasGelu"] == {"before": 0, "after": 1}
    assert [node.domain for node in onnx.load(out).graph.node] == ["com.microsoft"]


def test_functions_for_what_only_one_runtime_has(command: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    b = Builder(opset=23)
    x = b.input("x", f32["n", 8])
    sum_of_both = b.add(x, b.gelu(b.add(x, np.ones(8, np.float32))))
    b.output(b.layer_normalization(sum_of_both, np.ones(8, np.float32), np.zeros(8, np.float32)), "y")
    tilewright.save(b.build(), tmp_path / "in.onnx")
    done = command("optimize", tmp_path / "in.onnx", "-o", out, "--functions", "--require-parity")
    assert done.code == 0, done.err
    proto = onnx.load(out)
    assert [(node.domain, node.op_type) for node in proto.graph.node] == [
        ("tilewright", "BiasGelu"),
        ("tilewright", "SkipLayerNormalization"),
    ]
    assert {node.domain for function in proto.functions for node in function.node} == {""}
    done = command("optimize", tmp_path / "in.onnx", "-o", out, "--functions", "--keep-fused")
    assert done.code == 0, done.err
    assert {node.domain for node in onnx.load(out).graph.node} == {""}


def test_no_rewrite_is_to_blame_for_what_cannot_be_run(command: Callable[..., Any], model: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = command("optimize", model, "--opset", "4")  # ONNX Runtime has Relu from opset 6 on
    assert done.code == 1
    assert "the result cannot be run: ONNX Runtime does not load the model" in done.out
    assert "--no-parity writes it unchecked" in done.out
    assert "--bisect" not in done.out
    done = command("optimize", model, "--opset", "4", "--no-parity")
    assert done.code == 0, done.err
