"""Symbolic dimensions: unit tests, and laws over random expressions checked against Python's own arithmetic."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tilewright.graph.dims import (
    Dim,
    DimComplexityError,
    DimExpr,
    DimSyntaxError,
    FreshSymbols,
    bounds,
    ceildiv,
    dim_max,
    dim_min,
    evaluate,
    exact_div,
    format_dim,
    is_symbol,
    label_of,
    parse_dim,
    parse_dim_prefix,
    product,
    prove_equal,
    prove_less,
    prove_less_equal,
    substitute,
    symbol,
    symbols_of,
)

N, M, H = symbol("n"), symbol("m"), symbol("h")
P, Q = symbol("p", minimum=1), symbol("q", minimum=1)
ANY = symbol("any", minimum=None)
SMALL = symbol("small", minimum=2, maximum=5)


# ---- canonical form ----


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (N + M, M + N),
        ((N + 1) * (N - 1), N * N - 1),
        (N * (M + 2), 2 * N + M * N),
        ((H + 2 * 1 - 3) // 2 + 1, (H + 1) // 2),
        ((H - 7) // 1 + 1, H - 6),
        ((6 * N + 3) // 3, 2 * N + 1),
        ((6 * N + 5) // 4, (3 * N + 2) // 2),
        (((H + 1) // 2 + 1) // 2, (H + 3) // 4),
        ((N // 2) // 3, N // 6),
        (N // -2, -N // 2),
        ((N * P) // P, N),
        ((N * P + N) // (P + 1), N),
        ((N * P * Q) // (M * P), (N * Q) // M),
        ((P - 1) // P, 0),
        ((N + 4) % 2, N % 2),
        ((N % 6) % 3, N % 3),
        ((4 * N) % 2, 0),
        ((2 * N) % 4, 2 * (N % 2)),
        ((N * P) % P, 0),
        ((N % 4) // 4, 0),
        (SMALL // 6, 0),
        (SMALL % 6, SMALL),
        (dim_max(N, 0), N),
        (dim_max(N, N + 1), N + 1),
        (dim_min(N, N + 1), N),
        (dim_min(N, M, N), dim_min(M, N)),
        (dim_max(dim_max(N, M), H), dim_max(H, M, N)),
        (dim_max(N + 1, M + 1), dim_max(N, M) + 1),
        (dim_max(2 * N, 4), 2 * dim_max(N, 2)),
        (dim_min(SMALL, 7), SMALL),
        (ceildiv(N, 4), (N + 3) // 4),
        (ceildiv(N * P, P), N),
        (ceildiv(7, 2), 4),
        (ceildiv(7, -2), -3),
        (product([]), 1),
        (product([N, 2, M]), 2 * M * N),
        (N - N, 0),
        (0 * N, 0),
    ],
)
def test_equal_formulas_are_one_object(left: Dim, right: Dim) -> None:
    assert left is right or (isinstance(left, int) and left == right)


def test_division_that_may_be_by_zero_is_not_cancelled() -> None:
    assert str((N * M) // M) == "floordiv(m*n, m)"
    assert str((N * M) % M) == "mod(m*n, m)"
    assert str(M // M) == "floordiv(m, m)"


@pytest.mark.parametrize("divide", [lambda d: d // 0, lambda d: d % 0, lambda d: ceildiv(d, 0)])
@pytest.mark.parametrize("dividend", [N, 5])
def test_division_by_zero_raises(divide, dividend) -> None:
    with pytest.raises(ZeroDivisionError):
        divide(dividend)


def test_truth_and_order_are_refused() -> None:
    with pytest.raises(TypeError, match="prove_equal"):
        bool(N)
    with pytest.raises(TypeError):
        N < 3  # noqa: B015
    assert N != 3
    assert hash(N) == hash(symbol("n"))


def test_integers_of_other_kinds_are_accepted_and_anything_else_is_refused() -> None:
    assert N + np.int64(1) is N + 1
    assert np.int64(3) * N is 3 * N
    assert np.int64(3) - N is 3 - N
    assert N // np.int32(2) is N // 2
    assert symbol("n", minimum=np.int64(0)) is N
    with pytest.raises(TypeError):
        N + 1.5
    with pytest.raises(TypeError):
        "x" + N
    with pytest.raises(TypeError, match="an int or a DimExpr"):
        dim_max(N, None)
    with pytest.raises(TypeError, match=r"symbol\(\)"):
        DimExpr()


def test_copies_and_pickles_are_the_same_object() -> None:
    expression = (N * P + 3) // 4 + SMALL
    assert copy.copy(expression) is expression
    assert copy.deepcopy([expression])[0] is expression
    assert pickle.loads(pickle.dumps(expression)) is expression


@pytest.mark.parametrize(
    "grow",
    [
        lambda d: d * d + 1,
        lambda d: d // M + 1,
        lambda d: dim_max(d * M, d // H),
    ],
)
def test_growth_is_refused_before_it_hurts(grow: Callable[[Dim], Dim]) -> None:
    def grow_often() -> None:
        dim: Dim = N + M
        for _ in range(200):
            dim = grow(dim)

    with pytest.raises(DimComplexityError, match="limits"):
        grow_often()


# ---- symbols ----


def test_label_ordinal_and_range_identify_a_symbol() -> None:
    second = symbol("n", 1)
    assert symbol("n") is N
    assert len({N, second, symbol("n", minimum=1), symbol("n", maximum=8)}) == 4
    assert (second.label, second.ordinal) == ("n", 1)
    assert is_symbol(N)
    assert not is_symbol(N + 1)
    assert not is_symbol(3)
    with pytest.raises(AttributeError, match="not a plain symbol"):
        (2 * N).label  # noqa: B018
    with pytest.raises(ValueError, match="empty range"):
        symbol("n", minimum=3, maximum=2)
    with pytest.raises(ValueError, match="ordinal"):
        symbol("n", -1)


def test_symbols_of_looks_inside_calls() -> None:
    assert symbols_of(dim_max(N // 2, M % P) * 3 + 1) == {N, M, P}
    assert symbols_of(7) == frozenset()


def test_label_for_an_onnx_file() -> None:
    assert label_of(symbol("batch size", 2, 1)) == "batch size"
    assert label_of(N + 1) == "n + 1"


def test_fresh_symbols_count_above_what_is_in_use() -> None:
    source = FreshSymbols()
    assert [str(source.fresh()), str(source.fresh(1))] == ["?0", "?1[1..]"]
    source.note(symbol("?7") // 2 + symbol("n", 3))
    assert str(source.fresh()) == "?8"
    assert source.distinct("n") is symbol("n", 4)
    assert [source.distinct("a").ordinal for _ in range(3)] == [0, 1, 2]
    source.reserve("a", 9)
    assert source.distinct("a").ordinal == 10
    assert source.distinct("?0").ordinal == 1
    assert source.distinct("?12").ordinal == 0
    assert str(source.fresh()) == "?13"
    assert [str(d) for d in (FreshSymbols().fresh(), FreshSymbols().fresh())] == ["?0", "?0"]


# ---- proofs ----


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (N, N, True),
        (3, 3, True),
        (3, 4, False),
        (N + 1, N, False),
        (N, M, None),
        (N, symbol("n", 1), None),
        (symbol("k", minimum=2), 1, False),
        (2 * N, 2 * M + 1, False),
        (2 * (N // 2) + N % 2, N, True),
        (N - dim_max(N - 5, 0), dim_min(N, 5), True),
        (N + M - dim_min(N, M), dim_max(N, M), True),
        (N * P, N, None),
        (symbol("one", minimum=1, maximum=1), 1, True),
        (SMALL, 6, False),
    ],
)
def test_prove_equal(left: Dim, right: Dim, expected: bool | None) -> None:
    assert prove_equal(left, right) is expected
    assert prove_equal(right, left) is expected


@pytest.mark.parametrize(
    ("left", "right", "less_equal", "less"),
    [
        (1, 1, True, False),
        (N, N + 1, True, True),
        (N + 1, N, False, False),
        (0, N, True, None),
        (N, M, None, None),
        (P, P * Q, True, None),
        (N // 2, N, True, None),
        (ceildiv(N, 2), N, True, None),
        (N % 4, 4, True, True),
        (M % P, P, True, True),
        (P * (N // P), N, True, None),
        (dim_min(N, M), N, True, None),
        (N, dim_max(N, M), True, None),
        (dim_max(N, M) + 1, M, False, False),
        (SMALL, 5, True, None),
        (SMALL, 6, True, True),
    ],
)
def test_prove_order(left: Dim, right: Dim, less_equal: bool | None, less: bool | None) -> None:
    assert prove_less_equal(left, right) is less_equal
    assert prove_less(left, right) is less


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (4, (4, 4)),
        (N, (0, None)),
        (-N, (None, 0)),
        (ANY, (None, None)),
        (ANY * ANY, (0, None)),
        (3 * SMALL - 1, (5, 14)),
        (N % 4, (0, 3)),
        (N - 4 * (N // 4), (0, 3)),
        (-SMALL // 2, (-3, -1)),
        (dim_min(N, 7), (0, 7)),
        (dim_max(ANY, 3), (3, None)),
        (symbol("low", minimum=None, maximum=7), (None, 7)),
    ],
)
def test_bounds(dim: Dim, expected: tuple[int | None, int | None]) -> None:
    assert bounds(dim) == expected


@pytest.mark.parametrize(
    ("dividend", "divisor", "expected"),
    [
        (4 * N * M, 2 * M, 2 * N),
        (N * N - 1, N + 1, N - 1),
        (N * (M + 2) * 12, 12 * M + 24, N),
        (12, 4, 3),
        (12, 5, None),
        (0, N, 0),
        (6, N, None),
        (N, 2, None),
        (N + 1, M, None),
        (-2 * N * M, -M, 2 * N),
        (N - N % 4, 4, N // 4),
        ((N // 2) * M, M, N // 2),
    ],
)
def test_exact_division(dividend: Dim, divisor: Dim, expected: Dim | None) -> None:
    assert exact_div(dividend, divisor) is expected or exact_div(dividend, divisor) == expected


def test_exact_division_by_zero_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        exact_div(N, 0)


# ---- substitution ----


def test_substitution_is_simultaneous_and_simplifies() -> None:
    assert substitute(N + 2 * M, {N: M, M: N}) is M + 2 * N
    assert substitute((N * M) // M, {M: P}) is N
    assert substitute(dim_max(N, M), {M: N + 1}) is N + 1
    assert substitute(N // 4 + N, {N: 9}) == 11
    assert substitute(5, {N: 9}) == 5


def test_values_outside_a_range_and_missing_values_are_named() -> None:
    with pytest.raises(ValueError, match=r"value 6 is outside the range .*small.*2 to 5"):
        evaluate(SMALL, {SMALL: 6})
    with pytest.raises(ValueError, match=r"value -1 is outside"):
        substitute(N, {N: -1})
    with pytest.raises(ValueError, match="plain symbol"):
        substitute(N, {N + 1: 3})
    with pytest.raises(KeyError, match="no value for dimension m"):
        evaluate(N + M, {N: 1})
    with pytest.raises(ZeroDivisionError, match=r"floordiv\(n, m\)"):
        evaluate(N // M, {N: 1, M: 0})


# ---- text ----


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (7, "7"),
        (-7, "-7"),
        (N * M + 2 * N - 1, "m*n + 2*n - 1"),
        (1 - N, "-n + 1"),
        (-2 * N * N, "-2*n*n"),
        ((N + 1) // 2, "floordiv(n + 1, 2)"),
        (3 * (N % 4), "3*mod(n, 4)"),
        (dim_min(N - 1, 8), "min(n - 1, 8)"),
        (dim_max(N - 1, 0), "max(n - 1, 0)"),
        (symbol("n", 2), "n'2"),
        (symbol("a b", 2), '"a b"\'2'),
        (symbol("batch size"), '"batch size"'),
        (symbol(""), '""'),
        (symbol("min"), '"min"'),
        (symbol('say "é"\n'), '"say \\"\\u00e9\\"\\n"'),
        (symbol("?3", minimum=1), "?3[1..]"),
        (symbol("n", 2, None, 7), "n'2[-inf..7]"),
        (symbol("n", 0, None), "n[-inf..]"),
        (symbol("n", 0, -3, 7), "n[-3..7]"),
        (symbol("decoder.past_len"), "decoder.past_len"),
    ],
)
def test_text(dim: Dim, text: str) -> None:
    assert format_dim(dim) == text
    assert parse_dim(text) is dim or parse_dim(text) == dim


@pytest.mark.parametrize(
    ("text", "dim"),
    [
        (" ( n+1 )//2 ", (N + 1) // 2),
        ("-n % 4 + 2*(m - -1)", -N % 4 + 2 * (M + 1)),
        ("ceildiv(n, 2)", ceildiv(N, 2)),
        ("max(n, m, 3)", dim_max(N, M, 3)),
        ("min (n, m)", dim_min(N, M)),
        ("0", 0),
    ],
)
def test_other_spellings_are_read(text: str, dim: Dim) -> None:
    assert parse_dim(text) is dim or parse_dim(text) == dim


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("n +", 3),
        ("n m", 2),
        ("(n", 2),
        ("n'", 1),
        ("floordiv(n)", 11),
        ("floordiv(n, 0)", 14),
        ("n[3..2]", 7),
        ("n[1..", 1),
        ('"a', 0),
        ('"\\q"', 0),
        ("(" * 5000, 101),
        ("n $ m", 2),
    ],
)
def test_bad_text_is_refused_with_its_position(text: str, position: int) -> None:
    with pytest.raises(DimSyntaxError, match=f"offset {position} ") as caught:
        parse_dim(text)
    assert caught.value.position == position


def test_a_dimension_is_read_from_the_middle_of_a_text() -> None:
    text = "f32[2*n'1 , max(m, 3)]"
    first, end = parse_dim_prefix(text, 4)
    assert first is 2 * symbol("n", 1)
    assert text[end] == ","
    second, end = parse_dim_prefix(text, end + 1)
    assert second is dim_max(M, 3)
    assert text[end:] == "]"


_PRINT_IN_SOME_ORDER = """
import sys
from tilewright.graph.dims import *
labels = ["zeta", "a", "batch size", "k", "b.c", "?2"]
made = {label: symbol(label, minimum=i % 2) for i, label in sorted(enumerate(labels), reverse=sys.argv[1] == "1")}
a, b, c, d, e, f = (made[label] for label in labels)
print((a + b) * (c - d) + e // (f + 1) - dim_max(a, b * c, d) + dim_min(e, f, 3) % (b + 2) + (a * b - c) // 4)
print(sorted(map(str, symbols_of(a + b + c + d))), prove_less(a // b, a + 1), bounds(a // 3 - a))
"""


def test_text_depends_on_neither_hash_seed_nor_creation_order() -> None:
    def run(seed: str) -> str:
        command = [sys.executable, "-c", _PRINT_IN_SOME_ORDER, seed]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    first = run("1")
    assert first.count("\n") == 2
    assert first == run("2")


# ---- laws over random expressions ----

SYMBOLS = {
    symbol("n"): st.integers(0, 12),
    symbol("m", 1): st.integers(0, 12),
    symbol("p q", minimum=1): st.integers(1, 12),
    symbol("r", minimum=2, maximum=5): st.integers(2, 5),
    symbol("any", minimum=None): st.integers(-12, 12),
    symbol("neg", minimum=None, maximum=-1): st.integers(-12, -1),
}
OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}
Tree = object  # a symbol, an int, or (operation, tree, tree)

leaves = st.sampled_from([*SYMBOLS]) | st.integers(-9, 9)
trees = st.recursive(
    leaves,
    lambda inner: st.tuples(st.sampled_from([*OPERATIONS, "min", "max", "ceildiv"]), inner, inner),
    max_leaves=9,
)
assignments = st.fixed_dictionaries(SYMBOLS)


def build(tree: Tree) -> Dim:
    """The tree as a dimension; a tree that divides by a constant zero is not one."""
    if not isinstance(tree, tuple):
        return tree
    operation, left, right = tree[0], build(tree[1]), build(tree[2])
    special = {"min": dim_min, "max": dim_max, "ceildiv": ceildiv}
    try:
        return (special.get(operation) or OPERATIONS[operation])(left, right)
    except ZeroDivisionError:
        assume(False)


def compute(tree: Tree, values: dict[DimExpr, int]) -> int:
    """The tree's value by Python's integers alone."""
    if not isinstance(tree, tuple):
        return values[tree] if isinstance(tree, DimExpr) else tree
    operation, left, right = tree[0], compute(tree[1], values), compute(tree[2], values)
    special = {"min": min, "max": max, "ceildiv": lambda a, b: -(-a // b)}
    try:
        return (special.get(operation) or OPERATIONS[operation])(left, right)
    except ZeroDivisionError:
        assume(False)


@given(trees, assignments)
def test_evaluation_agrees_with_python(tree: Tree, values: dict[DimExpr, int]) -> None:
    expected = compute(tree, values)
    assert evaluate(build(tree), values) == expected


@given(trees, assignments)
def test_bounds_hold(tree: Tree, values: dict[DimExpr, int]) -> None:
    value = compute(tree, values)
    low, high = bounds(build(tree))
    assert low is None or low <= value
    assert high is None or value <= high


@given(trees, trees, assignments)
def test_proofs_agree_with_evaluation(left: Tree, right: Tree, values: dict[DimExpr, int]) -> None:
    a, b = compute(left, values), compute(right, values)
    assert prove_equal(build(left), build(right)) in (None, a == b)
    assert prove_less_equal(build(left), build(right)) in (None, a <= b)
    assert prove_less(build(left), build(right)) in (None, a < b)


@given(trees)
def test_text_round_trip(tree: Tree) -> None:
    dim = build(tree)
    again = parse_dim(format_dim(dim))
    assert again is dim or (isinstance(dim, int) and again == dim)


@given(trees, trees, trees)
def test_ring_laws_hold_by_identity(left: Tree, middle: Tree, right: Tree) -> None:
    a, b, c = build(left), build(middle), build(right)
    pairs = [
        (a + b, b + a),
        ((a + b) + c, a + (b + c)),
        (a * b, b * a),
        ((a * b) * c, a * (b * c)),
        (a * (b + c), a * b + a * c),
        (a - b, a + -1 * b),
        (a - a, 0),
        (dim_max(a, b), dim_max(b, a)),
        (dim_min(a, a), a),
    ]
    for first, second in pairs:
        assert first is second or (isinstance(first, int) and first == second)


@given(trees, trees, st.integers(1, 9))
def test_multiples_of_the_divisor_leave_a_division(left: Tree, right: Tree, divisor: int) -> None:
    a, b = build(left), build(right)
    assert str((a + b * divisor) // divisor) == str(a // divisor + b)
    assert str((a + b * divisor) % divisor) == str(a % divisor)
    positive = symbol("p q", minimum=1) + divisor
    assert str((a + b * positive) // positive) == str(a // positive + b)


@given(trees, trees)
def test_exact_division_undoes_multiplication(left: Tree, right: Tree) -> None:
    a, b = build(left), build(right)
    assume(not isinstance(b, int) or b != 0)
    assert str(exact_div(a * b, b)) == str(a)


@given(trees, trees, assignments)
def test_substitution_commutes_with_evaluation(tree: Tree, replacement: Tree, values: dict[DimExpr, int]) -> None:
    target = symbol("any", minimum=None)
    inner = compute(replacement, values)
    expected = compute(tree, {**values, target: inner})
    try:
        replaced = substitute(build(tree), {target: build(replacement)})
    except ZeroDivisionError:
        assume(False)
    assert evaluate(replaced, values) == expected
