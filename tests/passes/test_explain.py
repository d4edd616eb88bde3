"""Why a rule does not apply."""

from __future__ import annotations

from typing import Any

from tilewright.graph.builder import OpBuilder
from tilewright.graph.core import Value
from tilewright.graph.module import Module
from tilewright.graph.parser import parse
from tilewright.passes.explain import explain, render
from tilewright.passes.rules import Match, OpRule, Rule


class MatMulAdd(Rule):
    """add(matmul(a, b), c) -> gemm(a, b, c)"""

    name = "matmul-add-to-gemm"

    def match(self, p: Any, a: Any, b: Any, c: Any) -> Any:
        return p.add(p.matmul(a, b), c)

    def when(self, m: Match) -> Any:
        return m.rank(m.a) == 2 or m.fail("lhs rank is not 2", m.a)

    def build(self, b: OpBuilder, m: Match) -> Value:
        return b.gemm(m.a, m.b, m.c)


def module() -> Module:
    return parse("""func @main(%x: f32[2, 3, 4], %v: f32[3, 4], %w: f32[4, 5], %c: f32[5]) -> (
        %p: f32[2, 3, 5], %q: f32[3, 5], %r: f32[5], %s: f32[3, 5], %t: f32[3, 5]) {
      %0 = relu %x : f32[2, 3, 4]            @"act"#0
      %1 = matmul %0, %w : f32[2, 3, 5]      @"m"#1
      %2 = add %1, %c : f32[2, 3, 5]         @"rank 3"#2
      %3 = matmul %v, %w : f32[3, 5]         @"m"#3
      %4 = add %3, %c : f32[3, 5]            @"good"#4
      %5 = add %c, %c : f32[5]               @"no matmul"#5
      %6 = matmul %v, %w : f32[3, 5]         @"m"#6
      %7 = add %6, %c : f32[3, 5]            @"shared"#7
      return %2, %4, %5, %7, %6
    }""")


def test_the_nearest_partial_match_comes_first() -> None:
    found = explain(module(), MatMulAdd)
    assert [(miss.location.name, miss.applies, miss.reason) for miss in found] == [
        ("good", True, ""),
        ("rank 3", False, "lhs rank is not 2"),
        ("shared", False, "matmul has another user, return"),
        ("no matmul", False, "expected matmul, found an argument"),
    ]
    assert [op.name for op in found[1].matched] == ["matmul", "add"]


def test_it_reads_well() -> None:
    assert render(module(), MatMulAdd).splitlines()[:4] == [
        "rule matmul-add-to-gemm: add(matmul(a, b), c) -> gemm(a, b, c)",
        '  1. at "good"#4: applies to matmul, add',
        '  2. at "rank 3"#2: matched matmul, add; then: lhs rank is not 2',
        '       %0 : f32[2, 3, 4], made by relu at "act"#0',
    ]
    assert render(module(), MatMulAdd, limit=1).splitlines()[-1] == "  ... and 3 more"


def test_explaining_changes_nothing() -> None:
    subject = module()
    before = str(subject)
    explain(subject, MatMulAdd)
    assert str(subject) == before


def test_rules_of_one_operation_give_their_reason() -> None:
    class Never(OpRule):
        """relu(x) -> x"""

        root = "relu"

        def when(self, m: Match) -> Any:
            return m.fail("the operand may be negative", m.root.operands[0], m.root)

    (miss,) = explain(module(), Never)
    assert miss.reason == "the operand may be negative"
    assert str(miss).splitlines()[1:] == ["       %x : f32[2, 3, 4], an argument", '       relu at "act"#0']


def test_a_model_without_the_root_says_so() -> None:
    class Elsewhere(OpRule):
        """sqrt or exp"""

        root = ("sqrt", "exp")

    assert render(module(), Elsewhere) == "rule elsewhere: sqrt or exp\n  the model has no exp or sqrt to begin with"
