"""Copies share nothing changeable with the original; equality finds every difference and says where it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import random_modules
from hypothesis import HealthCheck, given, settings

from tilewright.graph import dtypes, opdef
from tilewright.graph.clone import clone_block, clone_function, clone_module, clone_operation, clone_operations
from tilewright.graph.core import Block, BlockOutput, Operation, Region, Value
from tilewright.graph.data import ArrayData, SparseData, UnresolvedData
from tilewright.graph.equality import first_difference, structural_hash, structurally_equal
from tilewright.graph.location import NodeLocation
from tilewright.graph.module import Module
from tilewright.graph.parser import parse
from tilewright.graph.printer import print_module
from tilewright.graph.verifier import verify

TEXT = """
module onnx opsets={"": 17} <ir_version=8, metadata_props={"a": "b"}>

func @main(%x: f32[n, 4], %c: bool[], %d: f32[4] = [1.0, 2.0, 3.0, 4.0] : f32[4]) -> (%y: f32[n, 4] <note="y">) <name="g"> {
  %w = const [0.5, nan, -0.0, 1.0] : f32[4]      @"W"#0
  %a = add %x, %w : f32[n, 4]                    @"Add"#1 <doc_string="sum">
  %i = if %c : f32[n, 4]                         @"If"#2
    then_branch() -> (%t: f32[n, 4]) {
      %t = mul %a, %d : f32[n, 4]
      return %t
    }
    else_branch() -> (%e: f32[n, 4]) {
      %e = relu %a : f32[n, 4]
      return %e
    }
  return %i
  value_info %a <doc_string="note">
}

func @my.domain::Scale opsets={"": 17} attributes={alpha=1.0} (%v: unknown) -> (%r) {
  return %v
}
"""  # noqa: E501


def op_of(module: Module, name: str) -> Operation:
    return next(op for op in module.walk() if op.results and op.results[0].name == name)


# ---- clone -----------------------------------------------------------------------------------------------------------


def test_a_clone_is_equal_and_independent() -> None:
    module = parse(TEXT)
    before = print_module(module)
    clone = clone_module(module)
    assert first_difference(module, clone) is None
    verify(clone)

    for op in clone.walk():
        op.metadata["touched"] = 1
        op.attributes["touched"] = 1
        for result in op.results:
            result.name = "touched"
            result.info = {"touched": 1}
    clone.metadata["metadata_props"]["a"] = "touched"
    clone.main.block.outputs[0].info = {}
    clone.main.block.metadata.clear()
    clone.main.defaults.clear()
    clone.functions.clear()
    clone.opsets[""] = 1
    clone.symbols.fresh()
    assert print_module(module) == before
    assert str(module.symbols.fresh()) == "?0"


def test_a_clone_hands_out_the_same_symbols() -> None:
    module = parse("func @main(%x: f32[n, ?6, n'3]) -> () { return }")
    clone = clone_module(module)
    assert clone.symbols.fresh() is module.symbols.fresh()
    assert clone.symbols.distinct("n") is module.symbols.distinct("n")


def test_constants_are_shared() -> None:
    module = parse(TEXT)
    assert op_of(clone_module(module), "w").attributes["value"] is op_of(module, "w").attributes["value"]


def test_the_map_leads_from_old_values_to_new() -> None:
    module = parse(TEXT)
    values: dict[Value, Value] = {}
    clone = clone_module(module, values)
    inner = op_of(module, "i").regions["then_branch"].block.first
    assert inner is not None
    assert values[inner.result] is op_of(clone, "i").regions["then_branch"].block.first.result  # type: ignore[union-attr]
    assert [values[argument] for argument in module.main.inputs] == list(clone.main.inputs)
    assert clone.main.defaults == {values[key]: data for key, data in module.main.defaults.items()}


def test_a_region_keeps_its_captures_unless_they_are_mapped() -> None:
    module = parse(TEXT)
    added, branch = op_of(module, "a").result, op_of(module, "i")
    kept = clone_operation(branch)
    assert kept.regions["else_branch"].block.first.operands == (added,)  # type: ignore[union-attr]
    assert kept.parent is None
    assert kept.location is branch.location
    other = Block([added.type]).arguments[0]
    moved = clone_operation(branch, {added: other})
    assert moved.regions["else_branch"].block.first.operands == (other,)  # type: ignore[union-attr]
    assert moved.regions["else_branch"].parent is moved


def test_a_block_inlines_by_mapping_its_arguments() -> None:
    function = parse("func @main(%p: f32[2]) -> (%r) { %q = relu %p : f32[2] %r = exp %q : f32[2] return %r }").main
    replacement = Block([dtypes.f32[2]]).arguments[0]
    values = {function.block.arguments[0]: replacement}
    relu, exp, returned = clone_operations(function.block, values)
    assert relu.operands == (replacement,)
    assert exp.operands == (relu.result,)
    assert returned.operands == (exp.result,)
    assert values[function.outputs[0]] is exp.result


def test_clone_function_and_block_are_detached() -> None:
    module = parse(TEXT)
    function = clone_function(module.functions[next(iter(module.functions))])
    assert first_difference(function, next(iter(module.functions.values()))) is None
    block = clone_block(module.main.block)
    assert block.parent is None
    assert [argument.use_count for argument in block.arguments] == [a.use_count for a in module.main.inputs]
    assert all(use.user not in set(module.walk()) for argument in block.arguments for use in argument.uses)


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(random_modules.modules())
def test_any_module_clones(module: Module) -> None:
    clone = clone_module(module)
    assert first_difference(module, clone) is None
    assert print_module(clone, weights="none") == print_module(module, weights="none")
    assert structural_hash(clone, names=False) == structural_hash(module, names=False)
    assert not set(module.walk()) & set(clone.walk())


# ---- equality --------------------------------------------------------------------------------------------------------


def _edit(name: str, **attributes: object) -> Callable[[Module], None]:
    return lambda module: op_of(module, name).attributes.update(attributes)


def _rename(module: Module) -> None:
    op_of(module, "a").result.name = "sum"


def _relocate(module: Module) -> None:
    op_of(module, "a").location = NodeLocation("Add", 2)


def _annotate(module: Module) -> None:
    op_of(module, "a").metadata["doc_string"] = "total"


def _inform(module: Module) -> None:
    op_of(module, "w").result.info = {}


def _exchange(module: Module) -> None:
    op = op_of(module, "a")
    op._set_operands(reversed(op.operands))


def _retype(module: Module) -> None:
    op_of(module, "a").result.type = dtypes.f32["m", 4]


def _append(module: Module) -> None:
    module.main.block._insert(Operation(opdef.lookup("", "Relu"), [], {}, []), module.main.block.terminator)


def _default(module: Module) -> None:
    module.main.defaults.clear()


def _output(module: Module) -> None:
    module.main.block.outputs[0] = BlockOutput("z", module.main.block.outputs[0].type, {"note": "y"})


def _output_type(module: Module) -> None:
    module.main.block.outputs[0].type = None


def _swap_branches(module: Module) -> None:
    regions = op_of(module, "i").regions
    regions["then_branch"], regions["else_branch"] = regions["else_branch"], regions["then_branch"]


def _constant(module: Module) -> None:
    op_of(module, "w").attributes["value"] = ArrayData(np.array([0.5, np.nan, 0.0, 1.0], np.float32))


def _hide(module: Module) -> None:
    op_of(module, "a").definition = opdef.opaque("", "Add")


@pytest.mark.parametrize(
    ("change", "counts_without_names", "what"),
    [
        (_rename, False, "result names"),
        (_relocate, False, "location"),
        (_annotate, False, "metadata"),
        (_inform, False, "result metadata"),
        (lambda module: module.metadata.update(ir_version=9), False, "metadata"),
        (lambda module: module.opsets.update({"": 18}), False, "opsets"),
        (lambda module: module.main.block.metadata.clear(), False, "metadata"),
        (_output, False, "output names"),
        (_output_type, True, "output types"),
        (_exchange, True, "operands"),
        (_retype, True, "result types"),
        (_append, True, "operator"),
        (_default, True, "defaults"),
        (_swap_branches, True, "output names"),
        (_constant, True, "attributes"),
        (_hide, True, "operator"),
        (_edit("a", axis=1), True, "attributes"),
        (lambda module: module.functions.clear(), True, "functions"),
        (lambda module: next(iter(module.functions.values())).attributes.update(alpha=2.0), True, "attributes"),
    ],
)  # fmt: skip
def test_differences_are_found_and_named(
    change: Callable[[Module], object], counts_without_names: bool, what: str
) -> None:
    module, changed = parse(TEXT), parse(TEXT)
    assert structurally_equal(module, changed)
    change(changed)
    difference = first_difference(module, changed)
    assert difference is not None
    assert difference.startswith(f"{what} is ")
    assert structural_hash(module) != structural_hash(changed)
    assert structurally_equal(module, changed, names=False) is not counts_without_names
    assert (structural_hash(module, names=False) == structural_hash(changed, names=False)) is not counts_without_names


def test_a_difference_shows_both_operations() -> None:
    module, changed = parse(TEXT), parse(TEXT)
    op_of(changed, "a").attributes["axis"] = 1
    assert first_difference(module, changed) == (
        'attributes is {} in the first, {"axis": 1} in the second\n'
        '  first:  %a = add %x, %w : f32[n, 4] @"Add"#1\n'
        '  second: %a = add %x, %w {axis=1} : f32[n, 4] @"Add"#1'
    )


def test_a_difference_of_a_region_names_the_operation() -> None:
    module, changed = parse(TEXT), parse(TEXT)
    op_of(changed, "i").regions["else_branch"].block.outputs[0].name = "other"
    difference = first_difference(module, changed)
    assert difference is not None
    assert difference.endswith('second: else_branch of %i = if %c : f32[n, 4] @"If"#2')


def test_names_do_not_matter_when_told_so() -> None:
    renamed = TEXT.replace("%a", "%0").replace("%t", "%then").replace("%x", "%input").replace('@"Add"#1', "")
    assert not structurally_equal(parse(TEXT), parse(renamed))
    assert structurally_equal(parse(TEXT), parse(renamed), names=False)


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1, True, False),
        (1, 1.0, False),
        (1.0, 1.0, True),
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        ("a", b"a", False),
        ((1, 2), [1, 2], True),
        ((1,), 1, False),
        ((), "", False),
        ("f32[2]", dtypes.f32[2], False),
        (np.int64(3), 3, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        (None, 0, False),
        (None, "None", False),
    ],
)
def test_attribute_values_are_compared_by_kind(a: object, b: object, equal: bool) -> None:
    first, second = parse(TEXT), parse(TEXT)
    op_of(first, "a").attributes["value"] = a
    op_of(second, "a").attributes["value"] = b
    assert structurally_equal(first, second) is equal
    assert (structural_hash(first) == structural_hash(second)) is equal


def test_sparse_constants_are_compared_as_stored() -> None:
    values, positions = ArrayData(np.array([1.0, 2.0], np.float32)), ArrayData(np.array([0, 4]))
    sparse = SparseData(values, positions, (10**9, 10**9))  # far too large to be made dense
    coordinates = SparseData(values, ArrayData(np.array([[0, 0], [0, 4]])), (10**9, 10**9))
    modules = [parse(TEXT) for _ in range(3)]
    for module, data in zip(modules, [sparse, SparseData(values, positions, sparse.shape), coordinates], strict=True):
        op_of(module, "w").attributes["value"] = data
    assert structurally_equal(modules[0], modules[1])
    assert structural_hash(modules[0]) == structural_hash(modules[1])
    assert not structurally_equal(modules[0], modules[2])


def test_unresolved_constants_are_compared_by_their_hash() -> None:
    data = ArrayData(np.arange(5000.0))
    known, unresolved = parse(TEXT), parse(TEXT)
    op_of(known, "w").attributes["value"] = data
    op_of(unresolved, "w").attributes["value"] = UnresolvedData(dtypes.f64, (5000,), data.sha256)
    assert structurally_equal(known, unresolved)
    assert structural_hash(known) == structural_hash(unresolved)


def test_hash_is_the_same_in_every_process() -> None:
    assert structural_hash(
        parse("func @main(%x: f32[n]) -> (%y) { %y = relu %x : f32[n] return %y }"), names=False
    ) == ("1bc92195ea36e172fcd683903bcd063b044ff49a7b75df7dce9e9e47c7f9f7b5")


def test_deep_nesting_is_no_problem() -> None:
    """Protobuf allows about 30 levels of nested graphs."""
    block = Block()
    block._insert(Operation(opdef.lookup("", "return")), None)
    for _ in range(90):
        outer = Block()
        outer._insert(Operation(opdef.lookup("", "If"), regions={"then_branch": Region(block)}), None)
        outer._insert(Operation(opdef.lookup("", "return")), None)
        block = outer
    module = parse("func @main() -> () { return }")
    module.main.region = Region(block, module.main)
    clone = clone_module(module)
    assert structurally_equal(module, clone)
    assert structurally_equal(module, parse(print_module(module)))
