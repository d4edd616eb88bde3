"""`tilewright diff`, and the comparison by structure behind it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tilewright
from tilewright.graph.diff import diff_modules

HEAD = 'module onnx opsets={"": 21}\n'


def parse(body: str, arguments: str = "%x: f32[8]", output: str = "%y: f32[8]") -> tilewright.Module:
    return tilewright.parse(f"{HEAD}func @main({arguments}) -> ({output}) {{\n{body}\n}}\n")


BEFORE = parse(
    """
  %a = exp %x : f32[8]      @"first"#0
  %b = neg %a : f32[8]      @"second"#1
  %y = tanh %b : f32[8]     @"third"#2
  return %y"""
)


def test_renumbering_is_no_difference() -> None:
    before = parse('%0 = exp %x : f32[8] @"e"#0\n%1 = neg %0 : f32[8] @"n"#1\nreturn %1')
    after = parse('%5 = exp %x : f32[8] @"e"#0\n%9 = neg %5 : f32[8] @"n"#1\nreturn %9')
    found = diff_modules(before, after)
    assert found.is_empty
    assert found.unchanged == 2
    assert diff_modules(BEFORE, BEFORE).is_empty


def test_a_fusion_stands_beside_what_it_came_from() -> None:
    after = parse(
        """
  %0 = softplus %x : f32[8]   @exp-neg-to-softplus("first"#0, "second"#1)
  %y = tanh %0 : f32[8]       @"third"#2
  return %y"""
    )
    found = diff_modules(BEFORE, after, same_origin=True)
    (change,) = found.changes
    assert change.rules == ["exp-neg-to-softplus"]
    assert change.sources == ['"first"#0', '"second"#1']
    assert [text.split(" : ")[0] for text in change.removed] == ["%a = exp %x", "%b = neg %a"]
    assert [text.split(" : ")[0] for text in change.added] == ["%+0 = softplus %x"]
    assert len(change.modified) == 1, "tanh reads the new value"


def test_the_user_of_a_dropped_operation_is_shown_with_it() -> None:
    after = parse('%b = neg %x : f32[8] @"second"#1\n%y = tanh %b : f32[8] @"third"#2\nreturn %y')
    (change,) = diff_modules(BEFORE, after).changes
    assert len(change.removed) == 1
    assert [(a.split(" : ")[0], b.split(" : ")[0]) for a, b in change.modified] == [("%b = neg %a", "%b = neg %x")]


def test_attributes_types_and_interface() -> None:
    before = parse("%y = softmax %x {axis=0} : f32[8]\nreturn %y")
    other_axis = parse("%y = softmax %x {axis=-1} : f32[8]\nreturn %y")
    assert len(diff_modules(before, other_axis).changes[0].modified) == 1
    other_type = parse("%y = softmax %x {axis=0} : f32[n]\nreturn %y")
    assert diff_modules(before, other_type).retyped == 1
    other_input = parse("%y = softmax %x {axis=0} : f32[8]\nreturn %y", arguments="%x: f32[8], %z: f32[1]")
    (interface,) = diff_modules(before, other_input).blocks[0].interface
    assert interface == ("(%x: f32[8]) -> (%y: f32[8])", "(%x: f32[8], %z: f32[1]) -> (%y: f32[8])")


def test_constants_are_compared_by_what_they_hold() -> None:
    before = parse("%w = const [1.0] : f32[1]\n%y = mul %x, %w : f32[8]\nreturn %y")
    after = parse("%w = const [2.0] : f32[1]\n%y = mul %x, %w : f32[8]\nreturn %y")
    found = diff_modules(before, after)
    assert len(found.changes[0].modified) == 1
    unnamed = parse("%0 = const [1.0] : f32[1]\n%y = mul %x, %0 : f32[8]\nreturn %y")
    again = parse("%3 = const [1.0] : f32[1]\n%y = mul %x, %3 : f32[8]\nreturn %y")
    assert diff_modules(unnamed, again).is_empty


def test_inside_of_regions() -> None:
    def model(name: str) -> tilewright.Module:
        return parse(
            f"""
  %y = if %c : f32[8]
    then_branch() -> (%r: f32[8]) {{
      %0 = {name} %x : f32[8]
      return %0
    }}
    else_branch() -> (%r: f32[8]) {{
      return %x
    }}
  return %y""",
            arguments="%c: bool[], %x: f32[8]",
        )

    found = diff_modules(model("exp"), model("neg"))
    assert [block.path for block in found.blocks] == ["@main / if %y / then_branch"]
    assert diff_modules(model("exp"), model("exp")).is_empty


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def traced(command: Callable[..., Any], model: Path) -> Path:
    """The folder of a trace of two passes."""
    folder = model.with_name("trace")
    assert command("optimize", model, "--passes", "remove-identity,dce", "--trace", folder).code == 0
    return folder


def test_two_files(command: Callable[..., Any], model: Path, traced: Path) -> None:
    after = model.with_name("small.opt.onnx")
    done = command("diff", model, after)
    assert done.code == 1
    assert "identity" in done.out
    assert "1 removed, 0 added, 1 changed in place, 2 unchanged" in done.out
    assert "\x1b[" in command("diff", model, after, "--color").out
    assert command("diff", model, model).code == 0
    assert "equal: 4 operations" in command("diff", model, model).out


def test_steps_of_a_trace(command: Callable[..., Any], traced: Path) -> None:
    whole = command("diff", traced)
    assert whole.code == 1
    assert "remove-identity, identity-to-input: identity(x) -> x" in whole.out
    assert command("diff", f"{traced}:1").out.splitlines()[2:] == whole.out.splitlines()[2:]
    assert command("diff", f"{traced}:input", f"{traced}:remove-identity").code == 1
    assert command("diff", f"{traced}:1", f"{traced}:last").code == 0
    assert command("diff", traced / "000-input.tw", f"{traced}:0").code == 0


def test_json(command: Callable[..., Any], traced: Path) -> None:
    report = json.loads(command("diff", traced, "--json").out)
    (change,) = report["blocks"][0]["changes"]
    assert change["reasons"] == ["remove-identity, identity-to-input: identity(x) -> x"]
    assert not report["equal"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["small.onnx"], "'small.onnx' is one model"),
        (["small.onnx", "missing.onnx"], "missing.onnx"),
        (["trace:9"], "has no step '9'"),
        (["trace:fold", "trace"], "its steps are: input, 1 remove-identity; 1 more changed nothing"),
        (["trace:input"], "nothing comes before the input"),
        (["."], "holds no trace"),
    ],
)
def test_bad_input(
    command: Callable[..., Any], traced: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(traced.parent)
    done = command("diff", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
