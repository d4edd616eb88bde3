"""The rewrite driver: what it applies, in which order, what it visits again, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from work import lines_run

from tilewright.graph.builder import OpBuilder
from tilewright.graph.core import Value
from tilewright.graph.diagnostics import PassError, TypeInferenceError
from tilewright.graph.location import NodeLocation
from tilewright.graph.module import Module
from tilewright.graph.parser import parse
from tilewright.passes.context import PassContext
from tilewright.passes.driver import apply_rules
from tilewright.passes.rules import AnyRule, Match, OpRule, Rule


class DoubleNegation(Rule):
    """neg(neg(x)) -> x"""

    def match(self, p: Any, x: Any) -> Any:
        return p.neg(p.neg(x))

    def build(self, b: OpBuilder, m: Match) -> Value:
        return m.x


class MatMulAdd(Rule):
    """add(matmul(a, b), c) -> gemm(a, b, c)"""

    name = "matmul-add-to-gemm"

    def match(self, p: Any, a: Any, b: Any, c: Any) -> Any:
        return p.add(p.matmul(a, b), c)

    def when(self, m: Match) -> Any:
        return m.rank(m.a) == 2 or m.fail("lhs rank is not 2", m.a)

    def build(self, b: OpBuilder, m: Match) -> Value:
        return b.gemm(m.a, m.b, m.c)


class ExpOnce(OpRule):
    """exp(x) -> sigmoid(x), counting the visits"""

    root = "exp"

    def build(self, b: OpBuilder, m: Match) -> Value:
        return b.sigmoid(m.root.operands[0])


def body(text: str, arguments: str = "%x: f32[4], %z: f32[4]", outputs: str = "%out: f32[4]") -> Module:
    return parse(f"func @main({arguments}) -> ({outputs}) {{ {text} }}")


def run(module: Module, *rules: type[AnyRule] | AnyRule, **settings: Any) -> PassContext:
    context = PassContext(**{"debug": True, **settings})
    context.current_pass = "tested"
    context.changed = apply_rules(module, rules, context)  # type: ignore[attr-defined]
    return context


def names(module: Module) -> list[str]:
    return [op.name for op in module.walk() if not op.is_terminator]


def test_a_match_is_replaced_in_place() -> None:
    arguments = "%x: f32[n, 8], %w: f32[8, 4], %c: f32[4]"
    module = body(
        '%0 = matmul %x, %w : f32[n, 4] @"m"#1 %h = add %c, %0 : f32[n, 4] @"a"#2 '
        '%1 = neg %h : f32[n, 4] @"n"#3 return %1',
        arguments,
        "%out: f32[n, 4]",
    )
    context = run(module, MatMulAdd)
    gemm, neg, _ = module.main.block
    assert names(module) == ["gemm", "neg"]
    assert [operand.name for operand in gemm.operand_values] == ["x", "w", "c"]
    assert gemm.result.name == "h"
    assert neg.operands == (gemm.result,)
    assert str(gemm.location) == 'matmul-add-to-gemm("m"#1, "a"#2)'
    assert gemm.location.name == "m"
    assert context.rules_fired == {"matmul-add-to-gemm": 1}
    assert context.applications == 1


def test_what_a_rewrite_makes_possible_is_visited_again() -> None:
    """Six negations need three applications, each made possible by the one before."""
    chain = " ".join(f"%{i} = neg %{i - 1} : f32[4]" if i else "%0 = neg %x : f32[4]" for i in range(6))
    module = body(f"{chain} %6 = exp %5 : f32[4] return %6")
    context = run(module, DoubleNegation)
    assert names(module) == ["exp"]
    assert context.applications == 3


def test_a_root_far_below_the_change_is_visited_again() -> None:
    """The root is visited first; the inner operation appears later, three levels above it."""

    class Deep(Rule):
        def match(self, p: Any, x: Any) -> Any:
            return p.neg(p.abs(p.sqrt(p.sigmoid(x))))

        def build(self, b: OpBuilder, m: Match) -> Value:
            return b.relu(m.x)

    class Late(OpRule):
        """log(x) -> exp(x), but only once `marker` is gone"""

        root = "log"

        def when(self, m: Match) -> Any:
            return not any(op.name == "tan" for op in m.root.parent or ()) or m.fail("not yet")

        def build(self, b: OpBuilder, m: Match) -> Value:
            return b.sigmoid(m.root.operands[0])

    class RemoveMarker(OpRule):
        root = "tan"

        def build(self, b: OpBuilder, m: Match) -> Value:
            source = m.root.operands[0]
            assert source is not None
            log = next(op for op in m.root.parent or () if op.name == "log")
            m.rewriter.set_attribute(log, "visited", None)
            return source

    module = body(
        "%0 = log %x : f32[4] %1 = sqrt %0 : f32[4] %2 = abs %1 : f32[4] %3 = neg %2 : f32[4] "
        "%4 = tan %z : f32[4] %5 = mul %3, %4 : f32[4] return %5"
    )
    run(module, Deep, Late, RemoveMarker)
    assert names(module) == ["relu", "mul"]


def test_losing_a_user_makes_a_private_pattern_match() -> None:
    """neg(%1) keeps %0 shared until the negations cancel."""
    module = body(
        "%0 = matmul %x, %w : f32[2, 4] %1 = add %0, %c : f32[2, 4] %2 = mul %0, %0 : f32[2, 4] "
        "%3 = exp %2 : f32[2, 4] return %1",
        "%x: f32[2, 8], %w: f32[8, 4], %c: f32[4]",
        "%out: f32[2, 4]",
    )
    run(module, MatMulAdd)
    assert names(module) == ["gemm"]


def test_earlier_rules_are_preferred() -> None:
    class First(OpRule):
        root = "exp"

        def build(self, b: OpBuilder, m: Match) -> Value:
            return b.abs(m.root.operands[0])

    forward, backward = (body("%0 = exp %x : f32[4] return %0") for _ in range(2))
    run(forward, First, ExpOnce)
    run(backward, ExpOnce, First)
    assert (names(forward), names(backward)) == (["abs"], ["sigmoid"])


def test_rules_reach_into_regions_and_functions() -> None:
    module = parse("""
      module onnx opsets={"": 28, "my": 1}
      func @main(%c: bool[], %x: f32[4]) -> (%out: f32[4]) {
        %0 = if %c : f32[4]
          then_branch () -> (%t: f32[4]) { %1 = exp %x : f32[4] return %1 }
          else_branch () -> (%e: f32[4]) { return %x }
        return %0
      }
      func @my::f opsets={"": 28} (%a: unknown) -> (%b: unknown) { %0 = exp %a : unknown return %0 }
    """)
    context = run(module, ExpOnce)
    assert context.applications == 2
    assert "exp" not in names(module)


def test_dead_operations_go_on_the_way() -> None:
    module = body("%0 = const 2.0 : f32[] %1 = mul %x, %0 : f32[4] %2 = exp %x : f32[4] return %2")
    context = run(module, ExpOnce)
    assert names(module) == ["sigmoid"]
    assert context.applications == 1


def test_nothing_to_do_changes_nothing() -> None:
    module = body("%0 = abs %x : f32[4] return %0")
    before = str(module)
    context = run(module, ExpOnce, DoubleNegation)
    assert context.changed is False  # type: ignore[attr-defined]
    assert str(module) == before


def test_in_place_updates_return_none() -> None:
    class NegativeAxis(OpRule):
        root = "softmax"

        def when(self, m: Match) -> Any:
            return m.root.attr("axis") >= 0 or m.fail("the axis is negative already")

        def build(self, b: OpBuilder, m: Match) -> None:
            m.rewriter.set_attribute(m.root, "axis", m.root.attr("axis") - (m.rank(m.value) or 0))

    module = body("%0 = softmax %x {axis=0} : f32[4] return %0")
    context = run(module, NegativeAxis)
    assert next(iter(module.main.block)).attributes == {"axis": -1}
    assert context.applications == 1


def test_a_rule_for_any_operation() -> None:
    class DropElementwise(OpRule):
        root = "*"

        def when(self, m: Match) -> Any:
            return (len(m.root.operands) == 1 and m.root.name != "return" and m.root.operands[0] is not None) or m.fail(
                ""
            )

        def build(self, b: OpBuilder, m: Match) -> Any:
            return m.root.operands[0]

    module = body("%0 = abs %x : f32[4] %1 = exp %0 : f32[4] return %1")
    run(module, DropElementwise)
    assert names(module) == []
    assert module.main.outputs[0].name == "x"


def test_several_results_are_replaced_together() -> None:
    class SplitToSlices(Rule):
        def match(self, p: Any, x: Any) -> Any:
            return p.split(x, num_outputs=2, outputs=2)

        def build(self, b: OpBuilder, m: Match) -> tuple[Value, Value]:
            return b.slice(m.x, [0], [2]), b.slice(m.x, [2], [4])

    module = body(
        "%0, %1 = split %x {num_outputs=2} : f32[2], f32[2] %2 = sub %0, %1 : f32[2] return %2", outputs="%out: f32[2]"
    )
    run(module, SplitToSlices)
    assert [name for name in names(module) if name != "const"] == ["slice", "slice", "sub"]


def test_several_roots_become_one_operation() -> None:
    class TwoMatMuls(Rule):
        """matmul(x, v), matmul(x, w) -> split(matmul(x, concat(v, w)))"""

        def match(self, p: Any, x: Any, v: Any, w: Any) -> Any:
            return p.matmul(x, p.const(v)), p.matmul(x, p.const(w))

        def build(self, b: OpBuilder, m: Match) -> Any:
            return b.split(b.matmul(m.x, b.concat(m.v, m.w, axis=1)), axis=1, num_outputs=2, outputs=2)

    module = body(
        "%v = const [[1.0], [2.0]] : f32[2, 1] %w = const [[3.0], [4.0]] : f32[2, 1] "
        "%p = matmul %x, %v : f32[3, 1] %0 = exp %p : f32[3, 1] %q = matmul %x, %w : f32[3, 1] "
        "%1 = mul %0, %q : f32[3, 1] return %1",
        "%x: f32[3, 2]",
        "%out: f32[3, 1]",
    )
    run(module, TwoMatMuls)
    ops = [op for op in module.walk() if op.name != "const"]
    assert [op.name for op in ops] == ["concat", "matmul", "split", "exp", "mul", "return"]
    assert [result.name for result in ops[2].results] == ["p", "q"]


# ---- types -----------------------------------------------------------------------------------------------------------


class ReturnOperand(OpRule):
    """op(x) -> x, whatever the types are: wrong, or not known to be right"""

    root = ("cast", "expand", "flatten", "my.ops.Other", "reshape")

    def build(self, b: OpBuilder, m: Match) -> Any:
        return m.root.operands[0]


@pytest.mark.parametrize(
    ("operation", "outputs"),
    [
        ("cast %x {to=10} : f16[4]", "%out: f16[4]"),
        ("flatten %x : f32[4, 1]", "%out: f32[4, 1]"),
        ("expand %x, %s : f32[2, 4]", "%out: f32[2, 4]"),
    ],
)
def test_a_changed_type_is_an_error_that_names_the_rule(operation: str, outputs: str) -> None:
    module = body(f"%s = const [2, 4] : i64[2] %0 = {operation} return %0", outputs=outputs)
    before = str(module)
    with pytest.raises(PassError, match="return-operand replaces a value of type") as raised:
        run(module, ReturnOperand)
    assert raised.value.code == "rule/type-changed"
    assert names(module)[-1] == names(parse(before))[-1]


EXPAND = "%0 = expand %x, %s : f32[?1] %1 = neg %0 : f32[?1] return %1"


def test_a_type_that_is_not_shown_to_agree_is_refused_with_a_remark() -> None:
    module = body(EXPAND, "%x: f32[n], %s: i64[1]", "%out: f32[?2]")
    context = run(module, ReturnOperand)
    assert names(module) == ["expand", "neg"]
    assert context.applications == 0
    (remark,) = context.log.diagnostics
    assert remark.code == "rule/type-unknown"
    assert "f32[n] is not known to be the f32[?1]" in remark.message


def test_a_rule_may_prove_shapes_itself() -> None:
    class Proven(ReturnOperand):
        proves_types = True

    module = body(EXPAND, "%x: f32[n], %s: i64[1]", "%out: f32[?2]")
    run(module, Proven)
    assert names(module) == ["neg"]


def test_what_a_file_claims_of_a_result_does_not_matter() -> None:
    """The declared `m` is a claim; inference from the operands says `n`, which is what counts."""

    class Both(Rule):
        """neg(neg(x)) -> x, through declared types"""

        def match(self, p: Any, x: Any) -> Any:
            return p.neg(p.neg(x))

        def build(self, b: OpBuilder, m: Match) -> Any:
            return m.x

    module = body(
        "%0 = neg %x : f32[k] %1 = neg %0 : f32[m] %2 = exp %1 : f32[m] return %2", "%x: f32[n]", "%y: f32[m]"
    )
    run(module, Both)
    assert names(module) == ["exp"]


def test_made_up_dims_of_new_operations_become_the_old_ones() -> None:
    class Again(OpRule):
        """reshape(x, s) -> reshape(x, s + 0), whose dims nobody can infer"""

        root = "reshape"

        def when(self, m: Match) -> Any:
            shape = m.root.operands[1]
            return (shape is not None and shape.is_argument) or m.fail("done")

        def build(self, b: OpBuilder, m: Match) -> Any:
            return b.reshape(m.root.operands[0], b.abs(m.root.operands[1]))

    module = body("%0 = reshape %x, %s : f32[a, 2] return %0", "%x: f32[n], %s: i64[2]", "%out: f32[a, 2]")
    run(module, Again)
    reshape = next(op for op in module.walk() if op.name == "reshape")
    assert str(reshape.result.type) == "f32[a, 2]"


def test_a_more_precise_type_replaces_an_unranked_one() -> None:
    module = body("%0 = exp %x : f32[*] %1 = neg %0 : f32[*] return %1", outputs="%out: f32[*]")
    run(module, ExpOnce)
    assert str(next(iter(module.main.block)).result.type) == "f32[4]"


# ---- rules that misbehave --------------------------------------------------------------------------------------------


def test_rules_that_undo_each_other_are_an_error_that_names_them() -> None:
    class Back(OpRule):
        root = "sigmoid"

        def build(self, b: OpBuilder, m: Match) -> Value:
            return b.exp(m.root.operands[0])

    module = body('%0 = exp %x : f32[4] @"here"#7 return %0')
    with pytest.raises(PassError, match="do not come to an end") as raised:
        run(module, ExpOnce, Back, debug=False)
    notes = raised.value.diagnostics[0].notes
    assert len(notes) == 9
    assert set(notes[1:]) == {'exp-once at back("here"#7)', 'back at exp-once("here"#7)'}


def rule(base: type[OpRule] = OpRule, **methods: Any) -> type[OpRule]:
    return type("Bad", (base,), {"root": "exp", **methods})


def test_yes_without_a_change_is_an_error_in_debug_mode() -> None:
    bad = rule(build=lambda self, b, m: None)
    module = body("%0 = exp %x : f32[4] return %0")
    assert run(module, bad, debug=False).applications == 0
    rewritten = rule(build=lambda self, b, m: m.rewriter.set_attribute(m.root, "none", None))
    with pytest.raises(PassError, match="said that it applies and changed nothing"):
        run(module, rewritten)


def test_a_change_before_build_is_an_error_in_debug_mode() -> None:
    def when(self: OpRule, m: Match) -> bool:
        m.root.attributes["sneaky"] = 1
        return False

    with pytest.raises(PassError, match="changed the graph before `build`"):
        run(body("%0 = exp %x : f32[4] return %0"), rule(when=when))


def test_a_change_by_a_rule_that_declines_is_an_error_in_debug_mode() -> None:
    def build(self: OpRule, b: OpBuilder, m: Match) -> Any:
        m.root.attributes["sneaky"] = 1
        return m.fail("no")

    with pytest.raises(PassError, match="declined and changed the graph"):
        run(body("%0 = exp %x : f32[4] return %0"), rule(build=build))


def test_declining_in_build_takes_back_what_was_made() -> None:
    def build(self: OpRule, b: OpBuilder, m: Match) -> Any:
        b.sigmoid(b.const([1.0, 2.0]))
        return m.fail("too late")

    module = body("%0 = exp %x : f32[4] return %0")
    before = str(module)
    assert run(module, rule(build=build)).changed is False  # type: ignore[attr-defined]
    assert str(module) == before


def test_a_new_value_that_uses_the_old_one_is_an_error() -> None:
    with pytest.raises(PassError, match="uses the value that it replaces"):
        run(body("%0 = exp %x : f32[4] return %0"), rule(build=lambda self, b, m: b.neg(m.value)))


def test_the_number_of_values_must_fit() -> None:
    with pytest.raises(PassError, match="gives 2 values for 1 results"):
        run(body("%0 = exp %x : f32[4] return %0"), rule(build=lambda self, b, m: (b.neg(m.root.operands[0]),) * 2))


@pytest.mark.parametrize("debug", [True, False])
def test_an_error_in_a_rule_says_which_and_where(debug: bool) -> None:
    module = body('%0 = exp %x : f32[4] @"here"#7 return %0')
    with pytest.raises(TypeInferenceError) as raised:
        run(module, rule(build=lambda self, b, m: b.matmul(m.root.operands[0], b.const([[1.0]]))), debug=debug)
    assert 'while the rule bad was tried at exp "here"#7' in str(raised.value)
    with pytest.raises(ZeroDivisionError) as other:
        run(module, rule(when=lambda self, m: 1 / 0), debug=debug)
    assert other.value.__notes__ == ['while the rule bad was tried at exp "here"#7']


# ---- limits ----------------------------------------------------------------------------------------------------------


def chain(name: str, count: int) -> str:
    return " ".join(f"%{i} = {name} {f'%{i - 1}' if i else '%x'} : f32[4]" for i in range(count))


@pytest.mark.parametrize("limit", [0, 2, 5, 9])
def test_the_number_of_applications_can_be_limited(limit: int) -> None:
    module = body(f"{chain('exp', 5)} return %4")
    context = run(module, ExpOnce, max_applications=limit)
    assert context.applications == min(limit, 5)
    assert names(module).count("sigmoid") == min(limit, 5)


@pytest.mark.parametrize(
    ("allowed", "expected"), [("bit-exact", "exp"), ("reassociates", "exp"), ("approximate", "sigmoid")]
)
def test_rules_less_exact_than_allowed_do_not_run(allowed: str, expected: str) -> None:
    class Rough(ExpOnce):
        exactness = "approximate"

    module = body("%0 = exp %x : f32[4] return %0")
    run(module, Rough, exactness=allowed)
    assert names(module) == [expected]


def test_locations_of_a_rule_that_creates_nothing_stay() -> None:
    module = body('%0 = neg %x : f32[4] @"a"#0 %1 = neg %0 : f32[4] @"b"#1 %2 = exp %1 : f32[4] @"c"#2 return %2')
    run(module, DoubleNegation)
    assert next(iter(module.main.block)).location == NodeLocation("c", 2)


def never_matching(count: int) -> Iterable[type[Rule]]:
    for index in range(count):

        class Never(Rule):
            name = f"never-{index}"

            def match(self, p: Any, a: Any, b: Any) -> Any:
                return p.exp(p.mul(p.exp(a), p.const(b, equal=3.0)))

        yield Never


@pytest.mark.slow
def test_work_grows_linearly() -> None:
    """Four times the operations, four times the work."""
    rules = [*never_matching(5), ExpOnce]

    def work(count: int) -> int:
        module = body(f"{chain('exp', count)} return %{count - 1}")
        return lines_run(lambda: run(module, *rules, debug=False))

    work(10)  # what is worked out once: patterns, signatures
    assert work(2000) < 4.2 * work(500)
