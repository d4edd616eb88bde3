"""Result types of If, Loop, Scan and of sequences: what is known inside a region is not always known outside."""

from __future__ import annotations

import re
from typing import Any

import pytest
from shape_graph import ShapeGraph, body, text

from tilewright.graph import types
from tilewright.graph.core import Region, Value
from tilewright.graph.diagnostics import TypeInferenceError
from tilewright.graph.dims import symbol
from tilewright.graph.dtypes import bool_, f16, f32, i64
from tilewright.graph.types import Type

n, m, k = symbol("n"), symbol("m"), symbol("k")


def unnumbered(*values: Value) -> str:
    return re.sub(r"\?\d+(\[[^]]*\])?", "?", text(*values))


def branch(graph: ShapeGraph, build: Any) -> Region:
    return body([], lambda g: [build(g)], graph.symbols)


def if_(graph: ShapeGraph, condition: Value, then: Any, otherwise: Any) -> Value:
    regions = {"then_branch": branch(graph, then), "else_branch": branch(graph, otherwise)}
    return graph.create("if", condition, **regions).result


@pytest.mark.parametrize(
    ("then", "otherwise", "expected"),
    [
        (f32[n, 4], f32[n, 4], "f32[n, 4]"),
        (f32[n, 4], f32[n, 5], "f32[n, ?]"),
        (f32[n, 4], f32[m, 4], "f32[?, 4]"),
        (f32[n], f32[n, 4], "f32[*]"),
        (f32[...], f32[n, 4], "f32[*]"),
    ],
)
def test_if_joins_its_branches(then: Type, otherwise: Type, expected: str) -> None:
    graph = ShapeGraph()
    condition, x, y = graph.argument(bool_[()]), graph.argument(then), graph.argument(otherwise)
    assert unnumbered(if_(graph, condition, lambda g: g.relu(x), lambda g: g.relu(y))) == expected


def test_if_with_a_known_condition() -> None:
    graph = ShapeGraph()
    x, y = graph.argument(f32[n, 1]), graph.argument(f32[n, 4])
    result = if_(graph, graph.scalar(True), lambda g: g.relu(x), lambda g: g.relu(y))
    assert text(result) == "f32[n, 1]"


def test_elements_come_out_of_the_branch_that_runs() -> None:
    graph = ShapeGraph()
    x = graph.argument(f32[n, 4])
    result = if_(graph, graph.scalar(False), lambda g: g.ints(1, 2), lambda g: g.shape(x))
    assert graph.elements(result) == ["n", "4"]


def test_dims_made_inside_do_not_leave() -> None:
    graph = ShapeGraph()
    x = graph.argument(f32[n, 4])
    result = if_(graph, graph.scalar(True), lambda g: g.nonzero(x), lambda g: g.nonzero(x))
    inner = result.producer.regions["then_branch"].block.returned[0]
    assert unnumbered(result) == "i64[2, ?]"
    assert result.type is not inner.type


def test_branches_of_different_dtypes() -> None:
    graph = ShapeGraph()
    condition, x, y = graph.argument(bool_[()]), graph.argument(f32[n]), graph.argument(f16[n])
    with pytest.raises(TypeInferenceError) as caught:
        if_(graph, condition, lambda g: g.relu(x), lambda g: g.relu(y))
    assert caught.value.code == "control/types"


def loop(
    graph: ShapeGraph, trips: Value | None, states: list[Type], inner: list[Type], build: Any, outputs: int
) -> Any:
    """A loop whose body has these state types and returns its condition and what `build` gives."""
    region = body(
        [i64[()], bool_[()], *inner], lambda g, i, condition, *values: [condition, *build(g, *values)], graph.symbols
    )
    operands = [trips, None, *[graph.argument(state) for state in states]]
    return graph.create("loop", *operands, outputs=outputs, body=region).results


def test_a_dim_that_the_body_keeps_is_kept() -> None:
    graph = ShapeGraph()
    results = loop(graph, graph.scalar(5), [f32[n, 4]], [f32[k, 4]], lambda g, x: [g.relu(x)], 1)
    assert text(*results) == "f32[n, 4]"


def test_a_state_that_grows() -> None:
    graph = ShapeGraph()
    results = loop(graph, graph.scalar(5), [f32[n, 4]], [f32[k, 4]], lambda g, x: [g.concat(x, x, axis=0)], 1)
    assert unnumbered(*results) == "f32[?, 4]"


def test_results_of_each_run_are_stacked() -> None:
    graph = ShapeGraph()
    results = loop(graph, graph.scalar(5), [f32[n, 4]], [f32[k, 4]], lambda g, x: [x, g.transpose(x)], 2)
    assert text(*results) == "f32[n, 4] f32[5, 4, n]"


def test_without_a_run_open_dims_are_unknown() -> None:
    """A loop that may not run at all gives elements whose symbolic dims nothing determines."""
    graph = ShapeGraph()
    trips = graph.squeeze(graph.shape(f32[m]), graph.ints(0))
    results = loop(graph, trips, [f32[n, 4]], [f32[k, 4]], lambda g, x: [x, g.transpose(x)], 2)
    assert unnumbered(*results) == "f32[n, 4] f32[m, 4, ?]"


def test_a_loop_that_may_stop_early() -> None:
    graph = ShapeGraph()
    region = body(
        [i64[()], bool_[()], f32[4]],
        lambda g, i, condition, x: [g.less(g.reduce_sum(x, keepdims=0), g.scalar(1.0)), x, x],
        graph.symbols,
    )
    op = graph.create("loop", graph.scalar(5), None, graph.argument(f32[4]), outputs=2, body=region)
    assert unnumbered(*op.results) == "f32[4] f32[?, 4]"


def test_states_of_another_dtype() -> None:
    graph = ShapeGraph()
    with pytest.raises(TypeInferenceError) as caught:
        loop(graph, None, [f32[n]], [f32[n]], lambda g, x: [g.cast(x, to=10)], 1)
    assert caught.value.code == "control/types"


def test_a_body_with_too_few_results() -> None:
    graph = ShapeGraph()
    with pytest.raises(TypeInferenceError) as caught:
        loop(graph, None, [f32[n], f32[n]], [f32[n], f32[n]], lambda g, x, y: [x], 1)
    assert caught.value.code == "control/results"


def test_scan() -> None:
    graph = ShapeGraph()
    region = body([f32[k], f32[k]], lambda g, state, x: [g.add(state, x), g.relu(x)], graph.symbols)
    state, x = graph.argument(f32[8]), graph.argument(f32[8, 7])
    op = graph.create(
        "scan", state, x, outputs=2, body=region, num_scan_inputs=1, scan_input_axes=(1,), scan_output_axes=(1,)
    )
    assert text(*op.results) == "f32[8] f32[8, 7]"


def test_scan_lengths() -> None:
    graph = ShapeGraph()
    region = body([f32[4], f32[4]], lambda g, x, y: [g.add(x, y)], graph.symbols)
    with pytest.raises(TypeInferenceError) as caught:
        graph.create("scan", graph.argument(f32[2, 4]), graph.argument(f32[3, 4]), body=region, num_scan_inputs=2)
    assert caught.value.code == "control/scan-length"


# ---- sequences -------------------------------------------------------------------------------------------------------


def test_construct_and_take() -> None:
    graph = ShapeGraph()
    built = graph.sequence_construct(f32[n, 4], f32[m, 4])
    assert unnumbered(built) == "sequence<f32[?, 4]>"
    assert text(graph.sequence_at(built, graph.scalar(-1))) == "f32[m, 4]"
    first, second = graph.sequence_at(built, i64[()]), graph.sequence_at(built, i64[()])
    assert unnumbered(first) == "f32[?, 4]"
    assert first.type is not second.type, "two elements need not have equal dims"
    assert graph.elements(graph.sequence_length(built)) == "2"


def test_elements_of_an_unknown_sequence() -> None:
    graph = ShapeGraph()
    given = graph.argument(types.sequence(f32[n, 4]))
    assert unnumbered(graph.sequence_at(given, graph.scalar(0))) == "f32[?, 4]"
    assert unnumbered(graph.concat_from_sequence(given, axis=0)) == "f32[?, 4]"
    assert unnumbered(graph.concat_from_sequence(given, axis=0, new_axis=1)) == "f32[?, ?, 4]"


@pytest.mark.parametrize(
    ("sizes", "attributes", "expected"),
    [
        (None, {}, "f32[1, n]"),
        (None, {"keepdims": 0}, "f32[n]"),
        ([2, 2, 2], {}, "f32[2, n]"),
        ([1, 5], {}, "f32[?, n]"),
        (3, {}, "f32[3, n]"),
        (4, {}, "f32[?, n]"),
    ],
)
def test_parts_of_a_tensor(sizes: Any, attributes: dict[str, int], expected: str) -> None:
    graph = ShapeGraph()
    operand = graph.ints(*sizes) if isinstance(sizes, list) else None if sizes is None else graph.scalar(sizes)
    parts = graph.split_to_sequence(f32[6, n], operand, **attributes)
    assert unnumbered(graph.sequence_at(parts, i64[()])) == expected


def test_insert_into_an_empty_sequence() -> None:
    graph = ShapeGraph()
    empty = graph.sequence_empty()
    assert text(empty) == "sequence<f32[*]>"
    filled = graph.sequence_insert(empty, f32[n, 4])
    assert text(filled) == "sequence<f32[n, 4]>"
    assert unnumbered(graph.sequence_insert(filled, f32[n, 5])) == "sequence<f32[n, ?]>"


def test_optional() -> None:
    graph = ShapeGraph()
    wrapped = graph.optional(f32[n])
    assert text(wrapped) == "optional<f32[n]>"
    assert text(graph.optional_get_element(wrapped)) == "f32[n]"
    assert graph.elements(graph.optional_has_element(wrapped)) is None
    assert graph.elements(graph.optional_has_element(f32[n])) == "True"
