"""`optimize` of a module and its report."""

from __future__ import annotations

import json

import pytest

from tilewright.graph.diagnostics import UsageError
from tilewright.graph.parser import parse
from tilewright.passes.context import PassContext
from tilewright.passes.optimize import optimize, summarize

TEXT = """module onnx opsets={"": 21}
func @main(%c: bool[], %x: f32[4]) -> (%y: f32[4]) {
  %w = const [1.0, 2.0, 3.0, 4.0] : f32[4]
  %0 = identity %x : f32[4]
  %1 = if %c : f32[4]
    then_branch() -> (%t: f32[4]) {
      %2 = add %0, %w : f32[4]
      %3 = identity %2 : f32[4]
      return %3
    }
    else_branch() -> (%e: f32[4]) {
      %4 = my.ops.Other %x : f32[4]
      return %4
    }
  %5 = exp %1 : f32[4]
  %6 = exp %1 : f32[4]
  %7 = add %5, %6 : f32[4]
  return %7
}"""


def test_nodes_of_subgraphs_count_and_constants_do_not() -> None:
    summary = summarize(parse(TEXT))
    assert summary.operators == {"Identity": 2, "If": 1, "Add": 2, "my.ops::Other": 1, "Exp": 2}
    assert summary.nodes == 8
    assert summary.weight_bytes == 16


def test_a_module_is_rewritten_in_place() -> None:
    module = parse(TEXT)
    report = optimize(module, passes="remove-identity,cse,dce")
    assert report.module is module
    assert report.level is None
    assert report.changed
    assert report.after.operators == {"If": 1, "Add": 2, "my.ops::Other": 1, "Exp": 1}
    assert (report.before.nodes, report.after.nodes) == (8, 5)


def test_level_zero_changes_nothing() -> None:
    module = parse(TEXT)
    before = str(module)
    report = optimize(module, level=0)
    assert not report.changed
    assert report.pipeline.rows == []
    assert str(module) == before


@pytest.mark.parametrize("level", [1, 2, 3])
def test_levels_run_their_preset(level: int) -> None:
    report = optimize(parse(TEXT), level=level, verify_each=True)
    assert report.level == level
    assert report.after.operators["Identity"] == 0
    assert report.after.nodes < report.before.nodes


def test_the_opset_to_write_can_be_set() -> None:
    module = parse(TEXT)
    optimize(module, level=0, opset=17)
    assert module.opsets[""] == 17


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": 4}, "there is no level 4"),
        ({"target": "tflite"}, "there is no target 'tflite'"),
        ({"passes": "nonsense"}, "no pass called 'nonsense'"),
    ],
)
def test_what_does_not_exist_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        optimize(parse(TEXT), **arguments)  # type: ignore[arg-type]


def test_the_report_is_plain_data_too() -> None:
    context = PassContext()
    context.remark("test/said", "something")
    report = optimize(parse(TEXT), passes="remove-identity,cse", context=context)
    data = json.loads(json.dumps(report.to_dict()))
    assert data["nodes"] == {"before": 8, "after": 5}
    assert data["operators"]["Exp"] == {"before": 2, "after": 1}
    assert data["rules"] == {"identity-to-input": 2, "merge-equal": 1}
    assert [row["pass"] for row in data["passes"]] == ["remove-identity", "cse"]
    assert data["diagnostics"][0]["code"] == "test/said"
    assert [remark.message for remark in report.remarks] == ["something"]
    assert report.warnings == []


def test_the_report_reads_as_tables() -> None:
    operators, passes = str(optimize(parse(TEXT), passes="remove-identity,cse,dce")).split("\n\n")
    assert operators.splitlines() == [
        "operator               before  after  change",
        "--------------------------------------------",
        "Exp                         2      1      -1",
        "Identity                    2      0      -2",
        "(unchanged operators)       4      4",
        "nodes                       8      5      -3",
        "weight bytes               16     16",
    ]
    rows = passes.splitlines()
    assert rows[0].split() == ["pass", "operations", "ms", "rewrites"]
    assert [row.split()[0] for row in rows[2:]] == ["remove-identity", "cse", "dce"]
    assert rows[2].endswith("identity-to-input x2")


@pytest.mark.parametrize(("mask", "opset", "said"), [("f32", 25, 1), ("f32", 24, 0), ("bool", 25, 0)])
def test_an_opset_at_which_a_runtime_has_another_kernel_is_remarked(mask: str, opset: int, said: int) -> None:
    module = parse(f"""
        module onnx opsets={{"": 23}}
        func @main(%q: f32[1, 2, 4, 8], %m: {mask}[4, 4]) -> (%y: f32[1, 2, 4, 8]) {{
          %0 = attention %q, %q, %q, %m : f32[1, 2, 4, 8]  @"a"#0
          return %0
        }}
        """)
    context = PassContext()
    optimize(module, opset=opset, context=context)
    assert [item.code for item in context.log.diagnostics].count("optimize/other-kernel") == said


def test_another_kernel_for_attention_in_a_function_is_remarked() -> None:
    """Where types are not known."""
    module = parse("""
        module onnx opsets={"": 23, "my.ops": 1}
        func @main(%q: f32[1, 2, 4, 8], %m: f32[4, 4]) -> (%y: f32[1, 2, 4, 8]) {
          %0 = my.ops.Attend %q, %m : f32[1, 2, 4, 8]
          return %0
        }
        func @my.ops::Attend opsets={"": 23} (%q: unknown, %m: unknown) -> (%y: unknown) {
          %0 = attention %q, %q, %q, %m : unknown
          return %0
        }
        """)
    context = PassContext()
    optimize(module, opset=25, context=context)
    assert [item.code for item in context.log.diagnostics].count("optimize/other-kernel") == 1
    assert next(op.op_type for op in module.main.walk()) == "Attention"
