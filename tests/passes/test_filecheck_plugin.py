"""The plugin that runs `.tw` files: how it splits them, and that it fails where it should."""

from __future__ import annotations

import textwrap
from pathlib import Path

import filecheck_plugin as plugin
import pytest

from tilewright.graph.diagnostics import ParseError

GOOD = """// RUN: cse
// CHECK: exp
func @main(%x: f32[4]) -> (%y: f32[4]) { %0 = exp %x : f32[4] return %0 }
// -----
// CHECK: neg
func @main(%x: f32[4]) -> (%y: f32[4]) { %0 = neg %x : f32[4] return %0 }
// ----- another pipeline from here on
// RUN: dce
// CHECK-NOT: neg
func @main(%x: f32[4]) -> (%y: f32[4]) { %0 = neg %x : f32[4] return %x }
"""


def run(text: str) -> None:
    for case in plugin.split_cases(text):
        plugin.run_case(case, "test.tw")


def test_cases_know_their_pipeline_and_line() -> None:
    cases = list(plugin.split_cases(GOOD))
    assert [(case.pipeline, case.line) for case in cases] == [("cse", 1), ("cse", 4), ("dce", 7)]
    assert cases[1].text.splitlines()[4] == "// CHECK: neg"
    run(GOOD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("CHECK: neg", "CHECK: sqrt"), "Couldn't match"),
        (("RUN: dce", "RUN: cse"), "excluded string found"),
        (("// CHECK: exp\n", ""), "the case checks nothing"),
        (("CHECK: exp", "EXPECT-ERROR: wrong"), "expected the error 'wrong', got"),
    ],
)
def test_a_wrong_result_fails(change: tuple[str, str], message: str) -> None:
    with pytest.raises(plugin.FileCheckFailure, match=message):
        run(GOOD.replace(*change))


def test_a_file_needs_a_pipeline() -> None:
    with pytest.raises(ValueError, match="no line"):
        run(GOOD.replace("// RUN: cse", "//"))


BAD = """// RUN:
func @main(%x: f32[4]) -> (%y: f32[4]) {
  %0 = expp %x : f32[4]  // EXPECT-ERROR: operator expp
  return %0
}
"""


def test_errors_are_expected_at_their_line() -> None:
    comment = "// EXPECT-ERROR: operator expp"
    run(BAD)
    with pytest.raises(plugin.FileCheckFailure, match="expected an error that contains"):
        run(BAD.replace("operator expp", "operator sqrt"))
    moved = BAD.replace(f"  {comment}", "").replace("return %0", f"return %0 {comment}")
    with pytest.raises(plugin.FileCheckFailure, match="expected the error at line 4, it is at 3"):
        run(moved)
    run(BAD.replace(f"  %0 = expp %x : f32[4]  {comment}", f"  {comment}\n  %0 = expp %x : f32[4]"))


def test_the_example_of_the_documentation_passes() -> None:
    text = (Path(__file__).parents[2] / "docs" / "passes.md").read_text(encoding="utf-8")
    start = text.index("    // RUN:")
    example = textwrap.dedent(text[start : text.index("\n\n", start)] + "\n")
    assert example.count("CHECK") == 3
    run(example)


def test_an_error_that_nobody_expects_is_raised() -> None:
    with pytest.raises(ParseError):
        run(BAD.replace("EXPECT-ERROR", "CHECK"))
