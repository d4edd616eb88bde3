"""Inferred types against the outputs that ONNX's node tests store: equal where they are determined, never wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from node_cases import (
    OlderForm,
    SymbolicInputs,
    actual_type,
    build_case,
    build_graph,
    mismatch,
    node_cases,
    open_dims,
    small_as_constant,
)

from tilewright.graph import types
from tilewright.graph.dims import DimExpr, prove_equal
from tilewright.graph.types import TensorType, Type

# Their bodies hold a branch for the other number of dims, which splits a vector of 5 into 4: never run, but ill-typed.
DEAD_BRANCH = {"test_affine_grid_3d_expanded", "test_affine_grid_3d_align_corners_expanded"}
# Operators whose result dims depend on the data, or whose sequences hold tensors of different dims.
DATA_DEPENDENT = (
    "compress", "identity_sequence", "image_decoder", "loop13_seq", "loop16_seq", "nonmaxsuppression", "nonzero",
    "sequence_insert", "sequence_map", "split_to_sequence", "string_split", "strnormalizer", "unique",
)  # fmt: skip
# Bodies that hold a Loop whose arguments have no declared types; giving them some is the importer's part.
UNTYPED_LOOP = ("linear_attention", "range")


def inferred(case: Any, input_type: Callable[..., Type | None]) -> list[Type] | None:
    """The types of the outputs of a case; None for an operator's form that is not today's."""
    try:
        return build_case(case, input_type)
    except OlderForm:
        return None


def outputs(
    kind: Callable[[], Callable[..., Type | None]],
) -> Iterator[tuple[str, Type, Any, dict[DimExpr, int]]]:
    """Name, inferred type, data and the numbers of the symbols, for each output of each case."""
    count = 0
    for name, case in node_cases().items():
        if name in DEAD_BRANCH:
            continue
        input_type = kind()
        found = inferred(case, input_type)
        if found is None:
            continue
        count += 1
        for type, data in zip(found, case.data_sets[0][1], strict=True):
            yield name, type, data, getattr(input_type, "numbers", {})
    assert count > 1800, "most cases must be in today's form"


KINDS: dict[str, Callable[[], Callable[..., Type | None]]] = {
    "inputs": lambda: actual_type,
    "small inputs constant": lambda: small_as_constant,
    "own symbols": lambda: SymbolicInputs(shared=False),
    "shared symbols": lambda: SymbolicInputs(shared=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_inferred_types_describe_the_outputs(kind: str) -> None:
    wrong = [
        f"{name}: {reason}"
        for name, type, data, numbers in outputs(KINDS[kind])
        if (reason := mismatch(type, data, numbers)) is not None
    ]
    assert wrong == []


def test_types_are_fully_known_where_no_data_decides() -> None:
    left_open = {
        name: str(type)
        for name, type, _, numbers in outputs(KINDS["small inputs constant"])
        if open_dims(type, numbers)
        and not any(f"test_{word}" in name for word in DATA_DEPENDENT)
        and not ("_expanded" in name and any(word in name for word in UNTYPED_LOOP))
    }
    assert left_open == {}


def test_symbols_survive_where_they_are_known() -> None:
    """At most a few outputs lose a dim when inputs are symbolic and shape-like inputs constant."""
    left_open = {name for name, type, _, numbers in outputs(KINDS["shared symbols"]) if open_dims(type, numbers)}
    plain = {name for name in left_open if "_expanded" not in name and not any(w in name for w in DATA_DEPENDENT)}
    # Scales and depths are no integer constants in these cases; DFT's length comes from a dim and a flag; a Scan
    # whose body declares numbers may run its body not once.
    undecided = {
        name for name in plain if not any(w in name for w in ("resize", "onehot", "range_", "dft", "stft", "scan9"))
    }
    assert undecided <= {
        "test_equal_string_broadcast", "test_matmul_bcast", "test_reshape_zero_and_negative_dim",
        "test_string_concat_broadcasting", *{n for n in undecided if n.startswith("test_causal_conv")},
    }  # fmt: skip


def test_types_are_those_of_the_function_bodies() -> None:
    """Where the standard gives an operator a body, its parts must come to the same types as the operator's own rule."""
    compared, wrong = set(), []
    for name, case in node_cases().items():
        if "_expanded" in name:
            continue
        try:
            graph = build_graph(case, small_as_constant)
        except OlderForm:
            continue
        for op in list(graph.block):
            values = None if op.regions or op.name == "const" else op.definition.decompose(op, graph.builder)
            for value, result in zip(values or [], op.results, strict=False):
                compared.add(op.name)
                if result.name != "" and not compatible(value.type, result.type):
                    wrong.append(f"{name}: {op.name} gives {result.type}, its body {value.type}")
    assert wrong == []
    assert len(compared) > 40


def compatible(left: Type, right: Type) -> bool:
    if not isinstance(left, TensorType) or not isinstance(right, TensorType):
        return left is right or types.UNKNOWN in (left, right)
    if left.dtype is not right.dtype or left.shape is None or right.shape is None:
        return left.dtype is right.dtype
    same_rank = len(left.shape) == len(right.shape)
    return same_rank and all(prove_equal(a, b) is not False for a, b in zip(left.shape, right.shape, strict=True))
