"""remove-identity: drop operations that give their operand back. Level onnx.

Invariant: a value that the graph returns keeps its declared output name.

    %0 = identity %x : f32[n]
    %1 = neg %0 : f32[n]         ->      %1 = neg %x : f32[n]
"""

from __future__ import annotations

from ..graph.builder import OpBuilder
from ..graph.core import Value
from .base import RulePass
from .pattern import PatternBuilder, PatternValue
from .rules import Match, Rule


class IdentityToInput(Rule):
    """identity(x) -> x"""

    name = "identity-to-input"

    def match(self, p: PatternBuilder, x: PatternValue) -> PatternValue:
        result: PatternValue = p.identity(x)
        return result

    def build(self, b: OpBuilder, m: Match) -> Value:
        x: Value = m.x
        return x


class RemoveIdentity(RulePass):
    """Drop operations that give their operand back."""

    name = "remove-identity"
    rules = (IdentityToInput,)
