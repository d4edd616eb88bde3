"""The trace: what each pass and each rewrite did, as JSON lines that can be read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilewright.graph.diagnostics import ModelError
from tilewright.graph.module import Module
from tilewright.graph.parser import parse
from tilewright.passes.base import Pass
from tilewright.passes.context import PassContext
from tilewright.passes.manager import PassManager
from tilewright.passes.trace import FILE_NAME, SCHEMA, Trace, read_trace

TEXT = """func @main(%x: f32[4]) -> (%y: f32[4]) {
  %copy = identity %x : f32[4]      @"copy"#0
  %a = exp %copy : f32[4]           @"first"#1
  %b = exp %x : f32[4]              @"second"#2
  %y = add %a, %b : f32[4]          @"sum"#3
  return %y
}"""


@dataclass(frozen=True)
class Remarks(Pass):
    """Says something, then fails."""

    name = "remarks"

    def run(self, module: Module, context: PassContext) -> bool:
        context.remark("test/said", "this is worth knowing", next(iter(module.main.block)).location, "a note")
        if module.main.block.first is not None and module.main.block.first.name == "exp":
            raise ValueError("stopped")
        return False


def traced(pipeline: PassManager, directory: Path) -> Module:
    module = parse(TEXT)
    pipeline.run(module, PassContext(trace=Trace(directory)))
    return module


def test_every_line_is_a_record_of_the_schema(tmp_path: Path) -> None:
    traced(PassManager.parse("remove-identity,cse,dce"), tmp_path)
    records = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    assert [record["kind"] for record in records] == [
        "begin",
        *("begin-pass", "rewrite", "end-pass"),
        *("begin-pass", "rewrite", "end-pass"),
        *("begin-pass", "end-pass"),
        "end",
    ]
    assert records[0]["schema"] == SCHEMA
    assert records[0]["pipeline"] == "remove-identity,cse,dce"
    first, second = (record for record in records if record["kind"] == "rewrite")
    assert first == {
        "kind": "rewrite",
        "pass": 1,
        "pass_name": "remove-identity",
        "number": 1,
        "rule": "identity-to-input",
        "reason": "identity(x) -> x",
        "seconds": first["seconds"],
        "at": ['"copy"#0'],
        "removed": [{"op": "identity", "results": ["%copy : f32[4]"], "from": ['"copy"#0']}],
        "added": [],
        "modified": [{"op": "exp", "results": ["%a : f32[4]"], "from": ['"first"#1']}],
    }
    assert (second["rule"], second["reason"]) == ("merge-equal", 'computes the same as "first"#1')
    assert [facts["from"] for facts in second["removed"]] == [['"second"#2']]
    assert records[3] == {
        "kind": "end-pass",
        "pass": 1,
        "pass_name": "remove-identity",
        "changed": True,
        "seconds": records[3]["seconds"],
        "ops_before": 4,
        "ops_after": 3,
        "snapshot": "001-remove-identity.tw",
        "cost": records[3]["cost"],
    }
    assert records[0]["cost"]["alone"] == {
        "kernels": 3, "flops": 12, "elements": 28, "read": 64, "written": 48, "unknown": 0
    }  # fmt: skip
    assert records[3]["cost"] == {
        "alone": records[0]["cost"]["alone"],  # an Identity moves nothing
        "fused": {"kernels": 1, "flops": 12, "elements": 8, "read": 16, "written": 16, "unknown": 0},
    }
    assert records[-2]["snapshot"] is None
    assert records[-1]["error"] is None


def test_snapshots_are_the_module_step_by_step(tmp_path: Path) -> None:
    module = traced(PassManager.parse("remove-identity,dce,cse"), tmp_path)
    trace = read_trace(tmp_path)
    assert [path.name for path in trace.snapshots] == ["000-input.tw", "001-remove-identity.tw", "003-cse.tw"]
    assert str(parse(trace.input.read_text())) == str(parse(TEXT))
    assert trace.snapshots[-1].read_text() == str(module)


def test_a_trace_is_read_back(tmp_path: Path) -> None:
    traced(PassManager.parse("remove-identity,repeat{cse}"), tmp_path)
    trace = read_trace(tmp_path)
    assert [(each.number, each.text, each.changed) for each in trace.passes] == [
        (1, "remove-identity", True),
        (2, "cse", True),
        (3, "cse", False),
    ]
    assert [len(each.rewrites) for each in trace.passes] == [1, 1, 0]
    assert [(each.ops_before, each.ops_after) for each in trace.passes] == [(4, 3), (3, 2), (2, 2)]
    assert trace.error is None
    assert trace.seconds is not None
    assert 0 < sum(each.seconds for each in trace.passes) < trace.seconds


def test_a_stopped_pipeline_leaves_a_readable_trace(tmp_path: Path) -> None:
    manager = PassManager([Remarks(), *PassManager.parse("remove-identity").steps, Remarks()], reproducers=False)
    with pytest.raises(ValueError, match="stopped"):
        traced(manager, tmp_path)
    trace = read_trace(tmp_path)
    assert [each.name for each in trace.passes] == ["remarks", "remove-identity", ""]
    assert trace.error == "stopped"
    remarks = trace.passes[0].diagnostics
    assert remarks == [
        {
            "kind": "remark",
            "pass": 1,
            "code": "test/said",
            "message": "this is worth knowing",
            "at": ['"copy"#0'],
            "notes": ["a note"],
        }
    ]


def test_a_half_written_last_line_is_left_out(tmp_path: Path) -> None:
    traced(PassManager.parse("remove-identity"), tmp_path)
    path = tmp_path / FILE_NAME
    text = path.read_text()
    path.write_text(text[: text.rindex("{") + 9])
    assert read_trace(tmp_path).seconds is None
    path.write_text(text.replace('{"kind": "rewrite"', "{kind"))
    with pytest.raises(ModelError, match="line 3: this is not JSON"):
        read_trace(tmp_path)


def test_a_new_trace_replaces_the_old_one(tmp_path: Path) -> None:
    traced(PassManager.parse("dce,dce,remove-identity"), tmp_path)
    traced(PassManager.parse("cse"), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000-input.tw", FILE_NAME]


def test_a_constant_without_a_place_is_called_by_its_name(tmp_path: Path) -> None:
    text = """
        module onnx opsets={"": 21}
        func @main(%x: f32[2]) -> (%y: f32[2]) {
          %one = const [1.0, 2.0] : f32[2]
          %same = const [1.0, 2.0] : f32[2]
          %s = add %x, %one : f32[2]
          %y = mul %s, %same : f32[2]
          return %y
        }"""
    PassManager.parse("cse").run(parse(text), PassContext(trace=Trace(tmp_path)))
    reasons = [rewrite["reason"] for each in read_trace(tmp_path).passes for rewrite in each.rewrites]
    assert reasons == ["computes the same as %one"]


def test_a_folder_without_a_trace_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no trace"):
        read_trace(tmp_path)
    (tmp_path / FILE_NAME).write_text('{"kind": "begin", "schema": 99}\n')
    with pytest.raises(ModelError, match="does not begin with a record of schema 1"):
        read_trace(tmp_path)
