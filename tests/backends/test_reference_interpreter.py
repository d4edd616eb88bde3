"""The interpreter: what it runs, what it skips, what it forgets, and what it says when something does not fit."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.backends.executable import ModelWarning
from tilewright.backends.reference.interpreter import ReferenceExecutable
from tilewright.backends.target import compile_module
from tilewright.graph.builder import OpBuilder
from tilewright.graph.core import Block, Region
from tilewright.graph.diagnostics import ExecutionError, UsageError
from tilewright.graph.dims import FreshSymbols
from tilewright.graph.dtypes import bool_
from tilewright.graph.evaluator import Evaluator

F32 = np.float32


def reference(text: str) -> ReferenceExecutable:
    executable = compile_module(tilewright.parse(text))
    assert isinstance(executable, ReferenceExecutable)
    return executable


def traced(executable: ReferenceExecutable) -> list[str]:
    """A list that the names of the operations go to as they run."""
    names: list[str] = []
    executable.trace = lambda op, operands, results: names.append(op.name)
    return names


TWO = reference("""
func @main(%x: f32[n, 2]) -> (%y: f32[n, 2], %z: f32[n, 2]) {
  %a = relu %x : f32[n, 2]
  %b = exp %x : f32[n, 2]
  %y = neg %a : f32[n, 2]
  %z = add %b, %b : f32[n, 2]
  return %y, %z
}""")


# ---- running ---------------------------------------------------------------------------------------------------------


def test_named_arrays_go_in_and_come_out() -> None:
    x = np.array([[-1, 2]], F32)
    results = TWO.run({"x": x})
    assert list(results) == ["y", "z"]
    np.testing.assert_array_equal(results["y"], [[0, -2]])
    np.testing.assert_allclose(results["z"], 2 * np.exp(x), rtol=1e-6)


def test_calling_takes_arrays_in_order_and_unpacks_one_result() -> None:
    y, _ = TWO(np.zeros((3, 2), F32))
    assert y.shape == (3, 2)
    one = reference("func @main(%x: f32[2]) -> (%y: f32[2]) { %y = neg %x : f32[2] return %y }")
    np.testing.assert_array_equal(one(np.array([1, 2], F32)), [-1, -2])
    with pytest.raises(UsageError, match="1 inputs, got 2"):
        one(np.zeros(2, F32), np.zeros(2, F32))


def test_only_what_the_wanted_outputs_need_is_computed() -> None:
    names = traced(TWO)
    x = np.zeros((1, 2), F32)
    assert list(TWO.run({"x": x}, ["z"])) == ["z"]
    assert names == ["exp", "add"]
    names.clear()
    assert list(TWO.run({"x": x}, ["z", "y"])) == ["z", "y"]
    assert set(names) == {"relu", "exp", "neg", "add"}


def test_an_unknown_output_is_named() -> None:
    with pytest.raises(UsageError, match="no output 'w'") as caught:
        TWO.run({"x": np.zeros((1, 2), F32)}, ["w"])
    assert "y, z" in str(caught.value)


def test_values_are_forgotten_after_their_last_use() -> None:
    chain = "\n".join(f"%v{i + 1} = exp %v{i} : f32[1000]" for i in range(8))
    executable = reference(
        f"func @main(%x: f32[1000]) -> (%y: f32[1000]) {{ %v0 = neg %x : f32[1000]\n{chain}\nreturn %v8 }}"
    )
    alive: list[weakref.ref[np.ndarray]] = []
    most = 0

    def count(op: Any, operands: Any, results: Any) -> None:
        nonlocal most
        alive.append(weakref.ref(results[0]))
        most = max(most, sum(reference() is not None for reference in alive))

    executable.trace = count
    executable.run({"x": np.zeros(1000, F32)})
    assert len(alive) == 9
    assert most == 2  # the operand and the result


def test_results_are_the_callers_own() -> None:
    executable = reference("""
    func @main(%x: f32[2]) -> (%same: f32[2], %constant: f32[2], %part: f32[1]) {
      %c = const [1.0, 2.0] : f32[2]
      %i = const [0] : i64[1]
      %j = const [1] : i64[1]
      %p = slice %x, %i, %j : f32[1]
      return %x, %c, %p
    }""")
    x = np.zeros(2, F32)
    results = executable.run({"x": x})
    for array in results.values():
        array += 1
    assert not x.any()
    np.testing.assert_array_equal(executable.run({"x": x})["constant"], [1, 2])


def test_later_changes_of_the_module_do_not_reach_the_executable() -> None:
    module = tilewright.parse(
        "func @main(%x: f32[1]) -> (%y: f32[1]) { %y = leaky_relu %x {alpha=2.0} : f32[1] return %y }"
    )
    executable = compile_module(module)
    next(iter(module.main.block)).attributes["alpha"] = 5.0
    np.testing.assert_array_equal(executable(np.array([-1], F32)), [-2])


def test_deeply_nested_branches_need_no_recursion() -> None:
    condition = Block([bool_[()]])
    inner = Block()
    OpBuilder(inner, FreshSymbols()).returns([condition.arguments[0]])
    for _ in range(1500):
        outer = Block()
        other = Block()
        builder = OpBuilder(other, FreshSymbols())
        builder.returns([builder.const(np.array(False))])
        builder = OpBuilder(outer, FreshSymbols())
        regions = {"then_branch": Region(inner), "else_branch": Region(other)}
        chosen = builder.create("if", [condition.arguments[0]], result_types=[bool_[()]], regions=regions)
        builder.returns([chosen.result])
        inner = outer
    (result,) = Evaluator().run(inner, [], captured={condition.arguments[0]: np.array(True)})
    assert result


# ---- inputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feeds", "code", "words"),
    [
        ({}, "run/missing-input", ["'x'", "f32[n, 2]"]),
        ({"x": np.zeros((1, 2), F32), "q": 1}, "run/unknown-input", ["'q'", "x: f32[n, 2]"]),
        ({"x": np.zeros((1, 2))}, "run/input-type", ["'x'", "must be f32", "is f64", ".astype(numpy.float32)"]),
        ({"x": np.zeros(2, F32)}, "run/input-type", ["rank must be 2, is 1"]),
        ({"x": np.zeros((1, 3), F32)}, "run/input-type", ["f32[n, 2]", "f32[1, 3]", "dim 1 must be 2, is 3"]),
        ({"x": None}, "run/input-type", ["may not be left out"]),
        ({"x": [[1, 2], [3]]}, "run/input-type", ["'x'"]),
        ({"x": np.array([["a", "b"]])}, "run/input-type", ["is string"]),
    ],
)
def test_inputs_that_do_not_fit_are_explained(feeds: dict[str, Any], code: str, words: list[str]) -> None:
    with pytest.raises(ExecutionError) as caught:
        TWO.run(feeds)
    assert caught.value.code == code
    for word in words:
        assert word in str(caught.value)


def test_all_problems_are_reported_at_once() -> None:
    executable = reference("func @main(%x: f32[2], %y: i64[]) -> (%z: f32[2]) { return %x }")
    with pytest.raises(ExecutionError) as caught:
        executable.run({"x": np.zeros(3, F32), "w": 1})
    assert {finding.code for finding in caught.value.diagnostics} == {
        "run/input-type", "run/missing-input", "run/unknown-input"
    }  # fmt: skip


def test_python_numbers_and_lists_take_the_declared_dtype() -> None:
    executable = reference("""
    func @main(%x: f32[2], %n: i64[], %flag: bool[]) -> (%y: f32[2], %m: i64[], %f: bool[]) {
      return %x, %n, %flag
    }""")
    y, m, f = executable([1, 2.5], 3, True)
    assert (y.dtype, m.dtype, f.dtype) == (np.float32, np.int64, np.bool_)
    with pytest.raises(ExecutionError, match="dtype must be i64, is f64"):
        executable([1, 2], 3.5, True)


def test_other_byte_orders_are_read() -> None:
    x = np.array([[1, 2]], F32)
    y, _ = TWO(x.astype(">f4"))
    np.testing.assert_array_equal(y, [[-1, -2]])


def test_dims_of_one_name_must_agree() -> None:
    executable = reference("""
    func @main(%x: f32[batch, 2], %y: f32[batch'1, 3], %z: f32[?0], %w: f32[?1]) -> (%a: f32[batch, 2]) {
      return %x
    }""")
    fine = {"z": np.zeros(1, F32), "w": np.zeros(2, F32)}
    executable.run({"x": np.zeros((4, 2), F32), "y": np.zeros((4, 3), F32), **fine})
    with pytest.raises(ExecutionError) as caught:
        executable.run({"x": np.zeros((4, 2), F32), "y": np.zeros((5, 3), F32), **fine})
    assert caught.value.code == "run/dim-mismatch"
    for word in ["'batch'", "dim 0 of input 'x' is 4", "dim 0 of input 'y' is 5"]:
        assert word in str(caught.value)


def test_an_input_with_a_default_may_be_left_out() -> None:
    executable = reference("""
    func @main(%x: f32[2], %s: f32[2] = [1.0, 2.0] : f32[2]) -> (%y: f32[2]) {
      %y = add %x, %s : f32[2]
      return %y
    }""")
    assert [port.required for port in executable.inputs] == [True, False]
    np.testing.assert_array_equal(executable(np.zeros(2, F32)), [1, 2])
    np.testing.assert_array_equal(executable(np.zeros(2, F32), np.array([5, 5], F32)), [5, 5])


def test_sequences_strings_and_optionals_go_in_and_out() -> None:
    executable = reference("""
    func @main(%s: sequence<f32[*]>, %t: string[2], %o: optional<f32[2]>) -> (%n: i64[], %u: string[2], %h: bool[]) {
      %n = sequence_length %s : i64[]
      %h = optional_has_element %o : bool[]
      return %n, %t, %h
    }""")
    n, u, h = executable([np.zeros(1, F32), np.zeros((2, 2), F32)], np.array(["a", "b"]), None)
    assert int(n) == 2
    assert u.dtype == object
    assert u.tolist() == ["a", "b"]
    assert h == np.array(False)
    with pytest.raises(ExecutionError, match="a sequence is given as a list"):
        executable.run({"s": np.zeros(2, F32), "t": np.array(["a", "b"]), "o": None})
    with pytest.raises(ExecutionError, match="an array of str"):
        executable.run({"s": [], "t": np.array([1, 2]), "o": None})


# ---- what goes wrong on the way --------------------------------------------------------------------------------------


def test_an_error_names_the_operation_its_place_and_its_operands() -> None:
    executable = reference("""
    func @main(%x: f32[3], %i: i64[1]) -> (%y: f32[1]) {
      %y = gather %x, %i : f32[1]    @"/pick/Gather"#7
      return %y
    }""")
    with pytest.raises(ExecutionError) as caught:
        executable(np.zeros(3, F32), np.array([5]))
    for word in ["gather failed", '"/pick/Gather"#7', "gather(f32[3], i64[1])", "out of bounds"]:
        assert word in str(caught.value)
    assert isinstance(caught.value.__cause__, IndexError)


def test_an_error_in_a_body_names_what_is_around_it() -> None:
    executable = reference("""
    func @main(%x: i64[], %y: i64[]) -> (%z: i64[]) {
      %n = const 2 : i64[]
      %c = const true : bool[]
      %z = loop %n, %c, %x : i64[]   @"outer"#1
        body(%i: i64[], %k: bool[], %s: i64[]) -> (%k2, %d) {
          %d = div %s, %y : i64[]    @"inner"#0
          return %k, %d
        }
      return %z
    }""")
    np.testing.assert_array_equal(executable(-7, 2), -1)  # truncated twice: -7 -> -3 -> -1
    with pytest.raises(ExecutionError) as caught:
        executable(1, 0)
    assert caught.value.code == "run/division-by-zero"
    assert '"inner"#0' in str(caught.value)
    assert 'inside loop at "outer"#1' in str(caught.value)


def test_the_least_integer_by_minus_one_is_an_error() -> None:
    executable = reference("func @main(%x: i32[1], %y: i32[1]) -> (%z: i32[1]) { %z = div %x, %y : i32[1] return %z }")
    with pytest.raises(ExecutionError, match="does not fit int32"):
        executable(np.array([-(2**31)], np.int32), np.array([-1], np.int32))


def test_an_operator_without_meaning_is_named() -> None:
    executable = reference(
        'func @main(%x: f32[1]) -> (%y: unknown) { %y = my.domain.Frob %x : unknown @"f"#3 return %y }'
    )
    with pytest.raises(ExecutionError, match=r"no numpy meaning for the operator my\.domain\.Frob") as caught:
        executable(np.zeros(1, F32))
    assert '"f"#3' in str(caught.value)


def test_a_wrongly_declared_dtype_is_an_error() -> None:
    executable = reference("func @main(%x: f32[1]) -> (%y: f64[1]) { %y = neg %x : f64[1] return %y }")
    with pytest.raises(ExecutionError, match=r"declared f64\[1\], but is f32\[1\]"):
        executable(np.zeros(1, F32))


def test_a_wrongly_declared_shape_is_a_warning() -> None:
    executable = reference("""
    func @main(%x: f32[n, 2]) -> (%y: f32[3, 2]) {
      %a = neg %x : f32[n + 1, 2]    @"bad"#4
      %y = neg %a : f32[n, 2]
      return %y
    }""")
    with pytest.warns(ModelWarning) as caught:
        result = executable(np.zeros((4, 2), F32))
    assert result.shape == (4, 2)
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 2
    assert "%a is declared f32[n + 1, 2], but is f32[4, 2]: dim 0 is 4, n + 1 is 5" in texts[0]
    assert '"bad"#4' in texts[0]
    assert "output 'y' is declared f32[3, 2], but is f32[4, 2]" in texts[1]


def test_another_level_is_refused() -> None:
    module = tilewright.parse("func @main(%x: f32[1]) -> (%y: f32[1]) { return %x }")
    module.level = "loop"
    with pytest.raises(UsageError, match="level 'onnx'"):
        compile_module(module)


# ---- compiling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": "abacus"}, ["no target called 'abacus'", "reference"]),
        ({"precision": "float7"}, ["no precision called 'float7'", "float32"]),
        ({"threads": 0}, ["at least 1"]),
    ],
)
def test_unknown_options_are_named(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        compile_module(tilewright.parse("func @main(%x: f32[1]) -> (%y: f32[1]) { return %x }"), **options)
    for word in words:
        assert word in str(caught.value)


def test_the_report_counts_operations() -> None:
    report = TWO.report()
    assert report["target"] == "reference"
    assert report["operations"] == 4
    assert report["operators"] == {"add": 1, "exp": 1, "neg": 1, "relu": 1}
    assert "x: f32[n, 2]" in repr(TWO)
