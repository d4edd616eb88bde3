"""What patterns match, and what they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.graph.core import Operation
from tilewright.graph.diagnostics import UsageError
from tilewright.graph.infer import InferenceContext
from tilewright.graph.parser import parse
from tilewright.passes.context import PassContext
from tilewright.passes.matcher import CompiledRule, FailureLog
from tilewright.passes.rules import Match, OpRule, Rule, Session


def rule_of(match: Callable[..., Any], when: Callable[[Any, Match], Any] | None = None) -> CompiledRule:
    """A rule whose `match` is the function given (parameters: self, p, captures...)."""
    return CompiledRule(type("Tested", (Rule,), {"match": match, "when": when or (lambda self, m: None)})())


def body(text: str, arguments: str = "%x: f32[4], %z: f32[4]", outputs: str = "%out: f32[4]") -> list[Operation]:
    """The operations of a function with this body."""
    return list(parse(f"func @main({arguments}) -> ({outputs}) {{ {text} }}").main.block)


def matches(rule: CompiledRule, ops: list[Operation], root: int = -2) -> Match | None:
    """The match rooted at an operation (default: the last before the return)."""
    symbols = parse("func @main() -> () { return }").symbols
    return rule.match(ops[root], Session(PassContext(), lambda: InferenceContext(symbols)))


def why_not(rule: CompiledRule, ops: list[Operation], root: int = -2) -> str:
    log = FailureLog()
    symbols = parse("func @main() -> () { return }").symbols
    assert rule.match(ops[root], Session(PassContext(), lambda: InferenceContext(symbols)), log) is None
    return log.reason


def test_captures_are_values_by_parameter_name() -> None:
    ops = body("%0 = mul %x, %z : f32[4] %1 = sub %0, %x : f32[4] return %1")
    match = matches(rule_of(lambda self, p, a, b, c: p.sub(p.mul(a, b), c)), ops)
    assert match is not None
    assert (match.a.name, match.b.name, match.c.name) == ("x", "z", "x")
    assert match.root is ops[1]
    assert match.ops == (ops[0], ops[1])
    assert match.op("mul") is ops[0]
    assert match.op("exp") is None
    assert match.value is ops[1].result
    with pytest.raises(AttributeError, match="captures nothing called 'nothing'"):
        _ = match.nothing


def test_a_repeated_capture_must_be_the_same_value() -> None:
    rule = rule_of(lambda self, p, a: p.sub(p.exp(a), a))
    assert matches(rule, body("%0 = exp %x : f32[4] %1 = sub %0, %x : f32[4] return %1")) is not None
    different = body("%0 = exp %x : f32[4] %1 = sub %0, %z : f32[4] return %1")
    assert why_not(rule, different) == "'a' stands for another value already"


def test_a_repeated_operation_must_be_the_same_one() -> None:
    def match(self: Rule, p: Any, a: Any) -> Any:
        e = p.exp(a)
        return p.sub(e, e)

    assert matches(rule_of(match), body("%0 = exp %x : f32[4] %1 = sub %0, %0 : f32[4] return %1")) is not None
    two = body("%0 = exp %x : f32[4] %1 = exp %x : f32[4] %2 = sub %0, %1 : f32[4] return %2")
    assert matches(rule_of(match), two) is None


@pytest.mark.parametrize("order", ["%0, %z", "%z, %0"])
def test_commutative_operands_match_in_both_orders(order: str) -> None:
    rule = rule_of(lambda self, p, a, b, c: p.add(p.mul(a, b), c))
    match = matches(rule, body(f"%0 = mul %x, %x : f32[4] %1 = add {order} : f32[4] return %1"))
    assert match is not None
    assert match.c.name == "z"


def test_operands_of_a_subtraction_match_in_order_only() -> None:
    rule = rule_of(lambda self, p, a, b, c: p.sub(p.mul(a, b), c))
    assert matches(rule, body("%0 = mul %x, %x : f32[4] %1 = sub %z, %0 : f32[4] return %1")) is None


def test_a_choice_is_taken_back_when_something_later_fails() -> None:
    """The first order binds a=x inside; only the second lets the outer operand agree."""
    rule = rule_of(lambda self, p, a, b: p.sub(p.add(p.exp(a), p.exp(b)), b))
    ops = body("%0 = exp %x : f32[4] %1 = exp %z : f32[4] %2 = add %0, %1 : f32[4] %3 = sub %2, %x : f32[4] return %3")
    match = matches(rule, ops)
    assert match is not None
    assert (match.a.name, match.b.name) == ("z", "x")


def test_a_choice_is_taken_back_when_when_refuses() -> None:
    rule = rule_of(lambda self, p, a, b: p.add(a, b), lambda self, m: m.a.name == "z" or m.fail("a is not z"))
    match = matches(rule, body("%0 = add %x, %z : f32[4] return %0"))
    assert match is not None
    assert match.a.name == "z"


def test_an_inner_value_with_another_user_does_not_match_unless_shared() -> None:
    text = "%0 = exp %x : f32[4] %1 = neg %0 : f32[4] %2 = mul %0, %1 : f32[4] return %2"
    private = rule_of(lambda self, p, a: p.neg(p.exp(a)))
    assert why_not(private, body(text), 1) == "exp has another user, mul"
    assert matches(rule_of(lambda self, p, a: p.neg(p.shared(p.exp(a)))), body(text), 1) is not None


def test_an_inner_value_that_is_returned_does_not_match() -> None:
    text = "%0 = exp %x : f32[4] %1 = neg %0 : f32[4] return %1, %0"
    ops = body(text, outputs="%p: f32[4], %q: f32[4]")
    assert why_not(rule_of(lambda self, p, a: p.neg(p.exp(a))), ops) == "exp has another user, return"


def test_users_inside_the_match_are_no_other_users() -> None:
    def silu(self: Rule, p: Any, a: Any) -> Any:
        inner = p.exp(a)
        return p.mul(inner, p.sigmoid(inner))

    ops = body("%0 = exp %x : f32[4] %1 = sigmoid %0 : f32[4] %2 = mul %1, %0 : f32[4] return %2")
    assert matches(rule_of(silu), ops) is not None


@pytest.mark.parametrize(
    ("constant", "number", "agrees"),
    [
        ("const 2.0 : f32[]", 2, True),
        ("const [2.0, 2.0, 2.0, 2.0] : f32[4]", 2.0, True),
        ("const [2.0, 2.0, 2.0, 2.5] : f32[4]", 2.0, False),
        ("const 0.1 : f32[]", 0.1, True),
        ("const 2.0000002 : f32[]", 2.0, False),
    ],
)
def test_numbers_match_constants_that_equal_them(constant: str, number: float, agrees: bool) -> None:
    rule = rule_of(lambda self, p, a: p.mul(a, number))
    assert (matches(rule, body(f"%0 = {constant} %1 = mul %0, %x : f32[4] return %1")) is not None) == agrees


def test_a_fraction_never_equals_an_integer_constant() -> None:
    ops = body("%0 = const 2 : i64[] %1 = mul %k, %0 : i64[4] return %1", "%k: i64[4]", "%out: i64[4]")
    assert matches(rule_of(lambda self, p, a: p.mul(a, 2.5)), ops) is None
    assert matches(rule_of(lambda self, p, a: p.mul(a, 2)), ops) is not None


def test_constant_captures_with_predicate_and_tolerance() -> None:
    ops = body("%0 = const 0.70710677 : f32[] %1 = mul %x, %0 : f32[4] return %1")
    near = rule_of(lambda self, p, a: p.mul(a, p.const("k", equal=0.7071, tolerance=1e-4)))
    match = matches(near, ops)
    assert match is not None
    assert match.scalar(match.k) == pytest.approx(0.70710677)
    np.testing.assert_array_equal(match.constant(match.k), np.float32(0.70710677))
    assert matches(rule_of(lambda self, p, a: p.mul(a, p.const("k", equal=0.7071, tolerance=1e-7))), ops) is None
    seen: list[np.ndarray] = []
    asked = rule_of(lambda self, p, a, k: p.mul(a, p.const(k, lambda array: seen.append(array) or False)))
    assert why_not(asked, ops) == "the constant k fails its predicate"
    assert seen[0].shape == ()
    assert why_not(rule_of(lambda self, p, a: p.mul(p.exp(a), p.const())), ops) == "expected exp, found an argument"


def test_a_constant_without_its_data_is_no_match_for_a_number() -> None:
    text = (
        "func @main(%x: f32[4]) -> (%y: f32[4]) { %w = const #w0 : f32[4] %0 = mul %x, %w : f32[4] return %0 }"
        f' weights {{ #w0 : f32[4] sha256="{"0" * 64}" }}'
    )
    ops = list(parse(text).main.block)
    assert why_not(rule_of(lambda self, p, a: p.mul(a, 1)), ops) == "the constant is not loaded"
    assert matches(rule_of(lambda self, p, a: p.mul(a, p.const())), ops) is not None


def test_attributes_are_compared_with_the_schemas_default() -> None:
    default = body("%0 = softmax %x : f32[4] return %0")
    other = body("%0 = softmax %x {axis=0} : f32[4] return %0")
    rule = rule_of(lambda self, p, a: p.softmax(a, axis=-1))
    assert matches(rule, default) is not None
    assert why_not(rule, other) == "expected axis=-1, found axis=0"
    capture = matches(rule_of(lambda self, p, a: p.softmax(a, axis=p.attr("axis"))), other)
    assert capture is not None
    assert capture.axis == 0
    assert matches(rule_of(lambda self, p, a: p.softmax(a)), other) is not None
    checked = rule_of(lambda self, p, a: p.softmax(a, axis=p.attr("axis", lambda axis: axis > 0)))
    assert why_not(checked, other) == "the attribute axis=0 fails its predicate"


CLIP = "%0 = const 0.0 : f32[] %1 = const 6.0 : f32[] "


@pytest.mark.parametrize(
    ("operation", "low", "high"),
    [("clip %x", False, False), ("clip %x, %0", True, False), ("clip %x, none, %1", False, True)],
)
def test_optional_operands_may_be_left_out(operation: str, low: bool, high: bool) -> None:
    ops = body(f"{CLIP} %2 = {operation} : f32[4] return %2")
    rule = rule_of(lambda self, p, a, low, high: p.clip(a, p.optional(low), p.optional(p.const(high))))
    match = matches(rule, ops)
    assert match is not None
    assert (match.low is not None, match.high is not None) == (low, high)


def test_operands_that_the_pattern_lacks_must_be_left_out() -> None:
    rule = rule_of(lambda self, p, a: p.clip(a))
    assert matches(rule, body("%0 = clip %x : f32[4] return %0")) is not None
    assert "has an operand 1" in why_not(rule, body(f"{CLIP} %2 = clip %x, %0 : f32[4] return %2"))
    gap = rule_of(lambda self, p, a, high: p.clip(a, p.absent, high))
    assert matches(gap, body(f"{CLIP} %2 = clip %x, none, %1 : f32[4] return %2")) is not None
    assert why_not(gap, body(f"{CLIP} %2 = clip %x, %0, %1 : f32[4] return %2")) == "this operand must be left out"
    wanted = rule_of(lambda self, p, a, low: p.clip(a, low))
    assert why_not(wanted, body("%0 = clip %x : f32[4] return %0")) == "the operand low is left out"


def test_variadic_operands_are_a_tuple() -> None:
    rule = rule_of(lambda self, p, first, parts: p.concat(first, p.variadic(parts), axis=p.attr("axis")))
    ops = body("%0 = concat %x, %z, %x {axis=0} : f32[12] return %0", outputs="%out: f32[12]")
    match = matches(rule, ops)
    assert match is not None
    assert [value.name for value in match.parts] == ["z", "x"]


def test_alternatives_bind_only_what_was_taken() -> None:
    rule = rule_of(lambda self, p, a, b: p.neg(p.either(p.exp(a), p.mul(a, b), a)))
    plain = matches(rule, body("%0 = neg %x : f32[4] return %0"))
    product = matches(rule, body("%0 = mul %x, %z : f32[4] %1 = neg %0 : f32[4] return %1"))
    assert plain is not None
    assert product is not None
    assert plain.b is None
    assert product.b.name == "z"
    assert len(plain.ops) == 1
    assert len(product.ops) == 2


def test_a_pattern_may_begin_with_alternatives() -> None:
    rule = rule_of(lambda self, p, a: p.either(p.exp(p.neg(a)), p.sqrt(a)))
    assert {definition.name for definition in rule.definitions} == {"exp", "sqrt"}
    assert matches(rule, body("%0 = neg %x : f32[4] %1 = exp %0 : f32[4] return %1")) is not None
    assert matches(rule, body("%0 = sqrt %x : f32[4] return %0")) is not None
    assert matches(rule, body("%0 = exp %x : f32[4] return %0")) is None


def test_named_inner_values() -> None:
    rule = rule_of(lambda self, p, a: p.neg(p.named("inner", p.either(p.exp(a), p.sqrt(a)))))
    ops = body("%0 = sqrt %x : f32[4] %1 = neg %0 : f32[4] return %1")
    match = matches(rule, ops)
    assert match is not None
    assert match.inner is ops[0].result
    assert match.op("inner") is ops[0]


def test_several_operations_by_name() -> None:
    rule = rule_of(lambda self, p, a: p.op(("exp", "neg", "my.ops.Other"), a))
    assert matches(rule, body("%0 = neg %x : f32[4] return %0")) is not None
    assert matches(rule, body("%0 = my.ops.Other %x : f32[4] return %0")) is not None


SPLIT = "%0, %1 = split %x {num_outputs=2} : f32[2], f32[2] "


def test_several_results_of_one_operation() -> None:
    rule = rule_of(lambda self, p, a: p.split(a, outputs=2))
    ops = body(f"{SPLIT} %2 = add %0, %1 : f32[2] return %2", outputs="%out: f32[2]")
    match = matches(rule, ops, 0)
    assert match is not None
    assert match.replaced == ops[0].results
    three = rule_of(lambda self, p, a: p.split(a, outputs=3))
    assert why_not(three, ops, 0) == "split has 2 results, not 3"


def test_results_are_told_apart() -> None:
    def match(self: Rule, p: Any, a: Any) -> Any:
        first, second = p.split(a, outputs=2)
        return p.sub(first, second)

    forward = body(f"{SPLIT} %2 = sub %0, %1 : f32[2] return %2", outputs="%out: f32[2]")
    backward = body(f"{SPLIT} %2 = sub %1, %0 : f32[2] return %2", outputs="%out: f32[2]")
    assert matches(rule_of(match), forward) is not None
    assert matches(rule_of(match), backward) is None


def test_a_root_result_that_is_not_replaced_must_be_unused() -> None:
    rule = rule_of(lambda self, p, a: p.split(a))
    used = body(f"{SPLIT} %2 = add %0, %1 : f32[2] return %2", outputs="%out: f32[2]")
    unused = body(f"{SPLIT} %2 = neg %0 : f32[2] return %2", outputs="%out: f32[2]")
    assert why_not(rule, used, 0) == "split has another user, add"
    assert matches(rule, unused, 0) is not None


def test_several_roots_are_found_through_what_they_share() -> None:
    def match(self: Rule, p: Any, a: Any) -> Any:
        shared = p.shared(p.exp(a))
        return p.neg(shared), p.sqrt(shared)

    ops = body("%0 = exp %x : f32[4] %1 = neg %0 : f32[4] %2 = sqrt %0 : f32[4] %3 = mul %1, %2 : f32[4] return %3")
    match_found = matches(rule_of(match), ops, 1)
    assert match_found is not None
    assert match_found.replaced == (ops[1].result, ops[2].result)
    assert match_found.root is ops[1]
    alone = body("%0 = exp %x : f32[4] %1 = neg %0 : f32[4] return %1")
    assert why_not(rule_of(match), alone) == "no sqrt uses it"


def test_several_roots_need_a_place_between_operands_and_users() -> None:
    rule = rule_of(lambda self, p, a, b, c: (p.sub(a, b), p.pow(a, c)))
    late = "%0 = sub %x, %z : f32[4] %1 = exp %z : f32[4] %2 = pow %x, %1 : f32[4] %3 = mul %0, %2 : f32[4] return %3"
    ops = body(late)
    match = matches(rule, ops, 0)
    assert match is not None
    assert match.root is ops[2]
    tied = "%0 = sub %x, %z : f32[4] %1 = exp %0 : f32[4] %2 = pow %x, %1 : f32[4] %3 = mul %0, %2 : f32[4] return %3"
    assert "no place" in why_not(rule, body(tied), 0)


def test_inner_operations_lie_in_the_roots_block() -> None:
    text = """func @main(%c: bool[], %x: f32[4]) -> (%out: f32[4]) {
      %0 = exp %x : f32[4]
      %1 = if %c : f32[4]
        then_branch () -> (%t: f32[4]) { %2 = neg %0 : f32[4] return %2 }
        else_branch () -> (%e: f32[4]) { return %x }
      return %1
    }"""
    neg = next(op for op in parse(text).walk() if op.name == "neg")
    rule = rule_of(lambda self, p, a: p.neg(p.exp(a)))
    assert why_not(rule, [neg], 0) == "exp lies in another block"
    assert matches(rule_of(lambda self, p, a: p.neg(p.shared(p.exp(a)))), [neg], 0) is not None


def test_reasons_of_when_are_kept() -> None:
    rule = rule_of(lambda self, p, a: p.neg(a), lambda self, m: m.fail("never", m.a))
    assert why_not(rule, body("%0 = neg %x : f32[4] return %0")) == "never"
    silent = rule_of(lambda self, p, a: p.neg(a), lambda self, m: False)
    assert "without a reason" in why_not(silent, body("%0 = neg %x : f32[4] return %0"))


@pytest.mark.parametrize(
    ("match", "message"),
    [
        (lambda self, p, a: p.negg(a), "no operation called 'negg'"),
        (lambda self, p, a, b: p.neg(a), "the parameter 'b' of match is not in the pattern"),
        (lambda self, p, a: a, "match must return results of operations"),
        (lambda self, p, shape: p.neg(shape), "cannot be called 'shape'"),
        (lambda self, p, a: p.neg("x"), "cannot be an operand"),
        (lambda self, p, a: p.either(p.neg(a)), "at least two alternatives"),
        (lambda self, p, a: p.mul(a, p.const(p.neg(a))), "only a parameter of match, or a name, can be captured"),
    ],
)
def test_mistakes_in_patterns_are_errors(match: Callable[..., Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rule_of(match)


def test_roots_that_share_nothing_are_a_mistake() -> None:
    rule = rule_of(lambda self, p, a, b: (p.neg(a), p.exp(b)))
    with pytest.raises(UsageError, match="shares no operand"):
        matches(rule, body("%0 = neg %x : f32[4] %1 = exp %z : f32[4] %2 = mul %0, %1 : f32[4] return %2"), 0)


def test_questions_about_values() -> None:
    text = """func @main(%x: f32[n, 4]) -> (%y: f32[n, 4]) {
      %0 = shape %x : i64[2]
      %1 = reshape %x, %0 : f32[n, 4]
      return %1
    }"""
    rule = rule_of(lambda self, p, a, s: p.reshape(a, s))
    match = matches(rule, list(parse(text).main.block))
    assert match is not None
    assert match.rank(match.a) == 2
    assert match.rank(None) is None
    assert str(match.dtype(match.a)) == "f32"
    symbolic = match.symbolic(match.s)
    assert symbolic is not None
    assert list(symbolic) == list(match.shape(match.a) or ())
    assert match.constant(match.s) is None
    assert match.data(match.s) is None
    with pytest.raises(RuntimeError, match="only `build` may change"):
        _ = match.rewriter


def test_rules_are_named_after_their_class_unless_told_otherwise() -> None:
    class DoubleNegation(Rule):
        """neg(neg(x)) -> x

        More words.
        """

    class Other(OpRule):
        name = "something-else"

    assert (DoubleNegation.name, Other.name) == ("double-negation", "something-else")
    assert DoubleNegation().summary == "neg(neg(x)) -> x"
