"""Numeric bisection: the first pass, and the first rewrite in it, that changes results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.graph.builder import OpBuilder
from tilewright.graph.core import Value
from tilewright.graph.module import Module
from tilewright.graph.parser import parse
from tilewright.passes import registry
from tilewright.passes.base import Pass, RulePass
from tilewright.passes.bisect import bisect
from tilewright.passes.context import PassContext
from tilewright.passes.manager import PassManager
from tilewright.passes.rules import Match, OpRule

X = np.linspace(0.5, 2, 4, dtype=np.float32)


class WrongWhenNegative(OpRule):
    """abs(x) -> relu(x): the same for positive values only"""

    name = "abs-to-relu"
    root = "abs"

    def build(self, b: OpBuilder, m: Match) -> Value:
        result: Value = b.relu(m.root.operands[0])
        return result


@dataclass(frozen=True)
class Wrong(RulePass):
    """Has a rule that is wrong for negative values."""

    name = "wrong"
    rules = (WrongWhenNegative,)


@dataclass(frozen=True)
class Uncounted(Pass):
    """Changes results without counting its rewrites."""

    name = "uncounted"

    def run(self, module: Module, context: PassContext) -> bool:
        rewriter = context.rewriter(module)
        for op in module.walk():
            if op.name == "exp":
                rewriter.replace(op, [rewriter.before(op).neg(op.operands[0])])
                return True
        return False


@pytest.fixture(autouse=True)
def _extra_passes() -> Iterator[None]:
    for cls in (Wrong, Uncounted):
        registry.register(cls)
    yield
    for cls in (Wrong, Uncounted):
        registry.unregister(cls.name)


def module() -> Module:
    """Nine absolute values, of which the operand of number 6 alone is negative."""
    steps = " ".join(f'%a{i} = abs %{"n" if i == 6 else "x"} : f32[4] @"abs {i}"#{i}' for i in range(9))
    total = " ".join(f"%s{i} = add %{f's{i - 1}' if i else 'x'}, %a{i} : f32[4]" for i in range(9))
    return parse(
        f"func @main(%x: f32[4]) -> (%y: f32[4], %z: f32[4]) {{ %i = identity %x : f32[4] %n = neg %i : f32[4] "
        f"{steps} {total} %e = exp %s8 : f32[4] return %e, %x }}"
    )


def evaluate(subject: Module, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
    outputs: Mapping[str, Any] = tilewright.compile(subject, target="reference").run(feeds)
    return outputs


def test_the_first_wrong_rewrite_is_found() -> None:
    subject = module()
    before = str(subject)
    result = bisect(subject, "remove-identity,cse,wrong,dce", evaluate, {"x": X})
    assert result is not None
    assert str(result.step) == "wrong"
    assert result.passes_before == ("remove-identity", "cse")
    assert (result.rule, result.output) == ("abs-to-relu", "y")
    assert str(result.location) == '"abs 6"#6'
    assert "largest difference" in result.difference
    assert str(subject) == before
    assert 'the rule abs-to-relu at "abs 6"#6' in str(result)
    again = bisect(parse(result.reproducer), "wrong", evaluate, {"x": X})
    assert again is not None
    assert again.location == result.location


def test_rewrites_that_agree_are_no_finding() -> None:
    assert bisect(module(), "remove-identity,cse,dce", evaluate, {"x": X}) is None
    assert bisect(module(), "wrong", evaluate, {"x": np.zeros(4, np.float32)}) is None


def test_a_pass_that_does_not_count_is_found_as_a_whole() -> None:
    result = bisect(module(), PassManager.parse("repeat{dce,uncounted}"), evaluate, {"x": X})
    assert result is not None
    assert (str(result.step), result.rule, result.application) == ("uncounted", None, None)
    assert str(result).startswith("the pass uncounted changes the output 'y'")


def test_a_rewritten_model_that_cannot_run_is_a_finding() -> None:
    def fails_after(subject: Module, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        if any(op.name == "relu" for op in subject.walk()):
            raise RuntimeError("no kernel for relu")
        return evaluate(subject, feeds)

    result = bisect(module(), "wrong", fails_after, {"x": X})
    assert result is not None
    assert (result.application, result.output) == (1, "*")
    assert "no kernel for relu" in result.difference
