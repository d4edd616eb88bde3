"""Inference over whole models: what it warns of, what it leaves alone, and that a second run adds nothing."""

from __future__ import annotations

import pytest

import tilewright
from tilewright import PassManager
from tilewright.passes.context import PassContext

CHAIN = """
func @main(%x: f32[n, 2]) -> (%y: f32[10, 2], %z: f32[*]) {
  %a = relu %x : f32[5, 2]
  %b = concat %a, %a {axis=0} : f32[10, 2]
  %c = reduce_sum %b {keepdims=0} : f32[7]
  return %b, %c
  value_info %a, %c
}
"""

GROWING = """
func @main(%m: i64[], %x: f32[n, 4]) -> (%y: f32[*], %z: f32[*]) {
  %0, %1 = loop %m, none, %x : f32[*], f32[*]
    body(%i: i64[], %c: bool[], %s: f32[n, 4]) -> (%d: bool[], %t: f32[*], %e: f32[*]) {
      %2 = concat %s, %x {axis=0} : f32[*]
      %3 = neg %s : f32[*]
      return %c, %2, %3
    }
  return %0, %1
}
"""


def inferred(text):
    model = tilewright.parse(text)
    context = PassContext()
    report = PassManager.parse("infer-shapes", reproducers=False).run(model, context)
    return model, context, report


def types(model):
    return {result.name: str(result.type) for op in model.walk() for result in op.results}


def test_stale_declarations_are_corrected_with_a_warning():
    model, context, report = inferred(CHAIN)
    assert report.changed
    assert types(model) == {"a": "f32[n, 2]", "b": "f32[2*n, 2]", "c": "f32[]"}
    # Only what the file declared is worth a warning: a size that may still be right, such as 5 for n, is not.
    assert [d.code for d in context.log.warnings] == ["infer/declared-type"]
    assert "%c is declared f32[7], but is f32[]" in context.log.warnings[0].message


def test_types_of_the_interface_stay_unless_they_are_wrong():
    model, _, _ = inferred(CHAIN)
    main = model.main.block
    assert str(main.arguments[0].type) == "f32[n, 2]"
    assert [str(output.type) for output in main.outputs] == ["f32[10, 2]", "f32[*]"]


def test_a_declared_output_that_cannot_be_right_is_corrected():
    text = "func @main(%x: f32[3, 2]) -> (%y: f32[4, 2]) {\n  %0 = neg %x : f32[3, 2]\n  return %0\n}"
    model, context, _ = inferred(text)
    assert str(model.main.block.outputs[0].type) == "f32[3, 2]"
    assert [d.code for d in context.log.warnings] == ["infer/declared-output"]


@pytest.mark.parametrize("text", [CHAIN, GROWING])
def test_a_second_run_changes_nothing(text):
    model, _, _ = inferred(text)
    before = str(model)
    assert not PassManager.parse("infer-shapes", reproducers=False).run(model).changed
    assert str(model) == before


def test_sizes_inside_a_loop_are_not_those_outside():
    model, _, _ = inferred(GROWING)
    (loop,) = (op for op in model.walk() if op.name == "loop")
    state = loop.regions["body"].block.arguments[2].type
    assert str(state.shape[1]) == "4"
    inside, outside = state.shape[0], [result.type.shape for result in loop.results]
    assert inside not in outside[0]
    assert inside not in outside[1]


def test_what_does_not_fit_is_reported_and_left_alone():
    text = "func @main(%x: f32[3], %y: f32[4]) -> (%z: f32[*]) {\n  %0 = add %x, %y : f32[*]\n  return %0\n}"
    model, context, report = inferred(text)
    assert not report.changed
    assert [d.code for d in context.log.diagnostics] == ["infer/failed"]
    assert types(model) == {None: "f32[*]"}
