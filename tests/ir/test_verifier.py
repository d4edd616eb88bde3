"""Each rule of the IR, broken on purpose: the verifier must name it, at the right operation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import random_modules
from hypothesis import HealthCheck, given, settings

from tilewright.graph import dtypes, opdef, types
from tilewright.graph.core import AttributeReference, BlockOutput, Operation, Region, Use
from tilewright.graph.data import ArrayData
from tilewright.graph.diagnostics import VerifyError
from tilewright.graph.module import FunctionKey, Module
from tilewright.graph.parser import parse
from tilewright.graph.signature import onnx_text
from tilewright.graph.verifier import MAX_EXCERPTS, findings, verify

SOUND = """
func @main(%x: f32[n, 4], %c: bool[], %d: f32[4] = [1.0, 2.0, 3.0, 4.0] : f32[4]) -> (%y: f32[n, 4], %s: f32[n, 4]) {
  %w = const [0.5, 0.5, 0.5, 0.5] : f32[4]      @"W"#0
  %a = add %x, %w : f32[n, 4]                   @"Add"#1
  %b = softmax %a {axis=-1} : f32[n, 4]         @"Softmax"#2
  %i = if %c : f32[n, 4]                        @"If"#3
    then_branch() -> (%t: f32[n, 4]) {
      %t = mul %b, %d : f32[n, 4]               @"Mul"#0
      return %t
    }
    else_branch() -> (%e: f32[n, 4]) {
      %e = relu %b : f32[n, 4]                  @"Relu"#0
      return %e
    }
  %z = my.domain.Scale %i {alpha=2.0} : unknown @"Scale"#4
  return %i, %b
}

func @my.domain::Scale opsets={"": 17} attributes={alpha} (%v: unknown) -> (%r) {
  %f = const $alpha: float : unknown            @"F"#0
  %r = mul %v, %f : unknown                     @"R"#1
  return %r
}
"""


class Ops:
    """The operations of a module by the name of their first result (`return` by its name)."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.main = module.main.block
        self._ops = {op.results[0].name if op.results else op.name: op for op in module.walk() if op.parent_op is None}
        self._ops |= {op.results[0].name: op for op in module.walk() if op.parent_op and op.results}
        self._ops["return"] = module.main.block.terminator

    def __getitem__(self, name: str) -> Operation:
        return self._ops[name]


def test_a_sound_module_has_no_findings() -> None:
    module = parse(SOUND)
    assert findings(module, types=True) == []
    verify(module)


def _unlinked_use(ops: Ops) -> None:
    del ops["a"].result._uses[Use(ops["b"], 0)]


def _invented_use(ops: Ops) -> None:
    ops["a"].result._uses[Use(ops["z"], 3)] = None


def _use_from_outside(ops: Ops) -> None:
    Operation(opdef.lookup("", "Relu"), [ops["a"].result], {}, [types.UNKNOWN])


def _use_before_definition(ops: Ops) -> None:
    ops.main._unlink(ops["w"])
    ops.main._insert(ops["w"], ops["b"])


def _cycle(ops: Ops) -> None:
    ops["a"]._set_operand(0, ops["b"].result)


def _own_result_in_region(ops: Ops) -> None:
    ops["t"]._set_operand(0, ops["i"].result)


def _result_of_a_branch(ops: Ops) -> None:
    ops["e"]._set_operand(0, ops["t"].result)


def _value_of_other_function(ops: Ops) -> None:
    ops["a"]._set_operand(0, ops["r"].operands[0])


def _detached_producer(ops: Ops) -> None:
    ops["a"]._set_operand(1, Operation(opdef.lookup("", "Relu"), [], {}, [dtypes.f32[4]]).result)


def _no_terminator(ops: Ops) -> None:
    ops["return"]._erase()


def _terminator_in_the_middle(ops: Ops) -> None:
    returned = Operation(opdef.lookup("", "return"), [ops["a"].result, ops["a"].result])
    ops.main._insert(returned, ops["b"])


def _undeclared_output(ops: Ops) -> None:
    ops.main.outputs.append(BlockOutput("extra", None))


def _absent_output(ops: Ops) -> None:
    ops["return"]._set_operand(0, None)


def _swapped_regions(ops: Ops) -> None:
    regions = ops["i"].regions
    regions["then_branch"], regions["else_branch"] = regions["else_branch"], regions["then_branch"]


def _lost_parent(ops: Ops) -> None:
    ops["a"].parent = None


def _wrong_index(ops: Ops) -> None:
    ops["a"].result.index = 1


def _shared_block(ops: Ops) -> None:
    then, other = (ops["i"].regions[name] for name in ("then_branch", "else_branch"))
    then.block = other.block


def _other_level(ops: Ops) -> None:
    _replace(ops["b"], Operation(opdef.opaque("kernel", "gemm"), ops["b"].operands, {}, [ops["b"].result.type]))


def _replace(old: Operation, new: Operation) -> None:
    assert old.parent is not None
    for use in old.result.uses:
        use.user._set_operand(use.position, new.result)
    old.parent._insert(new, old)
    old._erase()


def _set(name: str, **attributes: object) -> Callable[[Ops], None]:
    return lambda ops: ops[name].attributes.update(attributes)


def _operands(name: str, *operands: str | None) -> Callable[[Ops], None]:
    return lambda ops: ops[name]._set_operands(None if key is None else ops[key].result for key in operands)


def _retype(name: str, type: types.Type) -> Callable[[Ops], None]:
    def change(ops: Ops) -> None:
        ops[name].result.type = type

    return change


def _default_for_nothing(ops: Ops) -> None:
    ops.module.main.defaults[ops["a"].result] = ArrayData(np.zeros(4, np.float32))


def _default_of_other_dtype(ops: Ops) -> None:
    ops.module.main.defaults[ops.module.main.inputs[2]] = ArrayData(np.zeros(4, np.int64))


def _no_result(ops: Ops) -> None:
    ops["z"]._drop_results([])
    ops["z"].definition = ops["b"].definition


def _unknown_operator(ops: Ops) -> None:
    _replace(ops["b"], Operation(opdef.opaque("", "Sofmax"), ops["b"].operands, {}, [ops["b"].result.type]))


@pytest.mark.parametrize(
    ("damage", "code", "place"),
    [
        (_unlinked_use, "uses", '"Softmax"#2'),
        (_invented_use, "uses", '"Add"#1'),
        (_use_from_outside, "uses", '"Add"#1'),
        (_use_before_definition, "use-before-definition", '"Add"#1'),
        (_cycle, "cycle", '"Add"#1'),
        (_own_result_in_region, "cycle", '"Mul"#0'),
        (_result_of_a_branch, "scope", '"Relu"#0'),
        (_value_of_other_function, "foreign-value", '"Add"#1'),
        (_detached_producer, "detached-value", '"Add"#1'),
        (_no_terminator, "terminator", '"Scale"#4'),
        (_terminator_in_the_middle, "terminator", "unknown"),
        (_undeclared_output, "outputs", "unknown"),
        (_absent_output, "outputs", "unknown"),
        (_swapped_regions, "parent", '"If"#3'),
        (_lost_parent, "links", '"Add"#1'),
        (_wrong_index, "links", '"Add"#1'),
        (_shared_block, "parent", '"If"#3'),
        (_other_level, "level", "unknown"),
        (_unknown_operator, "unknown-operator", "unknown"),
        (_operands("b"), "operand-count", '"Softmax"#2'),
        (_operands("b", None), "operand-count", '"Softmax"#2'),
        (_operands("b", "a", "a"), "operand-count", '"Softmax"#2'),
        (_no_result, "result-count", '"Scale"#4'),
        (_set("b", axes=1), "attribute-unknown", '"Softmax"#2'),
        (_set("b", axis=1.0), "attribute-kind", '"Softmax"#2'),
        (_set("b", axis=AttributeReference("alpha", "float")), "attribute-kind", '"Softmax"#2'),
        (_set("b", axis=AttributeReference("alpha", "int")), "attribute-reference", '"Softmax"#2'),
        (_set("r", x=AttributeReference("beta", "int")), "attribute-reference", '"R"#1'),
        (lambda ops: ops["w"].attributes.clear(), "attribute-missing", '"W"#0'),
        (lambda ops: ops["i"].regions.pop("else_branch"), "region-missing", '"If"#3'),
        (lambda ops: ops["b"].regions.update(body=Region(parse("func @f() -> () { return }").main.block)), "", ""),
        (_retype("w", dtypes.i64[4]), "type-variable", '"Add"#1'),
        (_retype("b", dtypes.f64[4]), "type-variable", '"Softmax"#2'),
        (_retype("a", dtypes.i64[4]), "type-constraint", '"Softmax"#2'),
        (_retype("a", types.sequence(dtypes.f32[4])), "type-constraint", '"Add"#1'),
        (_default_for_nothing, "default", None),
        (_default_of_other_dtype, "default", None),
        (lambda ops: setattr(ops.module, "level", "attic"), "level", None),
        (lambda ops: ops.module.functions.update({FunctionKey("", "f"): ops.module.main}), "function-key", None),
    ],
)  # fmt: skip
def test_broken_rule_is_found(damage: Callable[[Ops], object], code: str, place: str | None) -> None:
    module = parse(SOUND)
    if code == "":  # a block has one owner from the start, so this one cannot even be built
        with pytest.raises(ValueError, match="belongs to a region"):
            damage(Ops(module))
        return
    damage(Ops(module))
    found = [finding for finding in findings(module) if finding.code == f"verify/{code}"]
    assert found, [finding.code for finding in findings(module)]
    assert (place and str(found[0].location)) == place
    with pytest.raises(VerifyError) as caught:
        verify(module)
    assert found[0].code in {finding.code for finding in caught.value.diagnostics}


LOOPS = """func @main(%m: i64[], %x: f32[4, 2], %s: f32[2], %c: bool[]) -> (%y: f32[2], %z: f32[4, 2]) {
  %0, %1 = scan %s, %x {num_scan_inputs=1} : f32[2], f32[4, 2]
    body(%a: f32[2], %b: f32[2]) -> (%d: f32[2], %e: f32[2]) {
      %2 = add %a, %b : f32[2]
      return %2, %2
    }
  %3 = loop %m, none, %0 : f32[2]
    body(%i: i64[], %g: bool[], %v: f32[2]) -> (%h: bool[], %w: f32[2]) {
      %4 = neg %v : f32[2]
      return %g, %4
    }
  %5 = if %c : f32[2]
    then_branch() -> (%t: f32[2]) {
      %6 = neg %3 : f32[2]
      return %6
    }
    else_branch() -> (%f: f32[2]) {
      return %3
    }
  return %5, %1
}"""


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, None),
        ({"num_scan_inputs=1": "num_scan_inputs=-1"}, "region-arguments"),
        ({"num_scan_inputs=1": "num_scan_inputs=3"}, "region-arguments"),
        ({"%b: f32[2])": "%b: f32[2], %k: f32[2])"}, "region-arguments"),
        ({"scan %s, %x": "scan %s, %s, %x"}, "region-arguments"),
        ({"(%d: f32[2], %e: f32[2])": "(%d: f32[2])", "%2, %2": "%2"}, "region-results"),
        ({"%v: f32[2])": "%v: f32[2], %k: f32[2])"}, "region-arguments"),
        ({"%w: f32[2])": "%w: f32[2], %k: f32[2])", "%g, %4": "%g, %4, %4"}, "region-results"),
        ({"(%h: bool[], %w: f32[2])": "(%h: bool[])", "%g, %4": "%g"}, "region-results"),
        ({"(%t: f32[2])": "(%t: f32[2], %k: f32[2])", "return %6": "return %6, %6"}, "region-results"),
    ],
)
def test_regions_take_and_return_what_their_operation_has(changes: dict[str, str], code: str | None) -> None:
    text = LOOPS
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    assert {finding.code for finding in findings(parse(text))} == ({f"verify/{code}"} if code else set())


def test_all_findings_come_at_once_with_their_context() -> None:
    module = parse(SOUND)
    ops = Ops(module)
    ops["b"].attributes["axis"] = "last"
    ops["a"].result.type = dtypes.i64[4]
    with pytest.raises(VerifyError) as caught:
        verify(module)
    codes = [finding.code for finding in caught.value.diagnostics]
    assert codes.count("verify/attribute-kind") == 1
    assert codes.count("verify/type-variable") >= 2
    finding = next(finding for finding in caught.value.diagnostics if finding.code == "verify/attribute-kind")
    assert finding.message == "the attribute 'axis' of softmax is of kind int, not 'last'"
    lines = finding.excerpt.splitlines()
    assert lines[2].startswith('> %b = softmax %a {axis="last"} : f32[n, 4]')
    assert lines[0].startswith("  %w = const [0.5, 0.5, 0.5, 0.5] : f32[4]")
    assert len(lines) == 6


def test_context_is_made_for_the_first_findings_only() -> None:
    lines = "".join(f"%v{index} = relu %x {{wrong=1}} : f32[2]\n" for index in range(MAX_EXCERPTS + 5))
    found = findings(parse(f"func @main(%x: f32[2]) -> () {{ {lines} return }}"))
    assert len(found) == MAX_EXCERPTS + 5
    assert [bool(finding.excerpt) for finding in found] == [True] * MAX_EXCERPTS + [False] * 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%a = relu %x : f32[n, 5]", "%a is f32[n, 5], inference says f32[n, 4]"),
        ("%a = matmul %x, %x : f32[n, 4]", None),
    ],
)
def test_types_that_contradict_inference(line: str, message: str | None) -> None:
    module = parse(
        f"func @main(%x: f32[2, 4]) -> () {{ {line.replace('n', '2') if message is None else line} return }}"
    )
    assert findings(module) == []
    found = findings(module, types=True)
    assert [finding.code for finding in found] == ["verify/inference"]
    if message is not None:
        assert found[0].message == message.replace("says f32[n", "says f32[2")


def test_checking_types_takes_no_symbols() -> None:
    module = parse("func @main(%x: f32[n]) -> () { %a = nonzero %x : i64[1, m] return }")
    before = str(module)
    verify(module, types=True)
    assert str(module) == before
    assert str(module.symbols.fresh()) == "?0"


def test_operators_of_unknown_domains_are_left_alone() -> None:
    op = "%a = some.domain.Op none, %x {a=1} : unknown body() -> () { return }"
    verify(parse(f"func @main(%x: f32[n]) -> () {{ {op} return }}"))


def test_a_called_function_may_lie_in_the_default_domain() -> None:
    text = 'func @main(%x: f32[n]) -> () { %a = ""::"Twice" %x : unknown return }'
    assert [finding.code for finding in findings(parse(text))] == ["verify/unknown-operator"]
    verify(parse(text + ' func @Twice opsets={"": 17} (%x: unknown) -> (%y) { %y = add %x, %x : unknown return %y }'))


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (dtypes.f32[3], "tensor(float)"),
        (dtypes.u8[...], "tensor(uint8)"),
        (dtypes.f8e4m3fnuz[3], "tensor(float8e4m3fnuz)"),
        (dtypes.bool_[3], "tensor(bool)"),
        (types.sequence(dtypes.bf16[3]), "seq(tensor(bfloat16))"),
        (types.optional(types.sequence(dtypes.i4[3])), "optional(seq(tensor(int4)))"),
        (types.map_of(dtypes.string, dtypes.f64[()]), "map(string, double)"),
        (types.sequence(types.UNKNOWN), None),
        (types.UNKNOWN, None),
    ],
)
def test_types_are_spelled_as_in_onnx(type: types.Type, text: str | None) -> None:
    assert onnx_text(type) == text


def test_every_dtype_is_spelled_as_in_onnx() -> None:
    import onnx.defs

    known = {text for schema in onnx.defs.get_all_schemas() for item in schema.inputs for text in item.types}
    assert {onnx_text(dtype[...]) for dtype in dtypes.ALL} <= known


def test_maps_are_checked_too() -> None:
    text = 'func @main(%x: map<i64, f32[]>) -> () {{ %y = ai.onnx.ml.CastMap %x {{cast_to="TO_FLOAT"}} : {0} return }}'
    verify(parse(text.format("f32[1, n]")))
    with pytest.raises(VerifyError, match="cannot be bool"):
        verify(parse(text.format("bool[1, n]")))


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(random_modules.modules())
def test_random_modules_are_sound_in_structure(module: Module) -> None:
    """Their operators mean nothing, but links, uses and scopes are as the constructor made them."""
    structural = {"parent", "links", "uses", "use-before-definition", "cycle", "scope", "foreign-value", "terminator"}
    assert not structural & {finding.code.removeprefix("verify/") for finding in findings(module)}
