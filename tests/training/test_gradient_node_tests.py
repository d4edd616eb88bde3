"""Every operator that ONNX tags differentiable, on the inputs of ONNX's own node tests: one test per operator.

An input that is not tagged (a shape, indices, a condition) is made a constant, as in most models.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
import onnx.defs
import pytest
from node_cases import as_array, node_cases

import tilewright
from tilewright.graph import opdef
from tilewright.graph.builder import OpBuilder
from tilewright.graph.data import as_data
from tilewright.graph.module import Module
from tilewright.graph.opdef import OpDefinition
from tilewright.passes.training.check import check_gradients
from tilewright.passes.training.derivation import GradientError

# Tagged, or named by the design although the tag is missing.
UNTAGGED = {"Attention", "LayerNormalization", "RMSNormalization", "RoiAlign", "RotaryEmbedding"}
# Refused by name: a rule would be zero wherever there is one.
REFUSED = {"Hardmax"}
# Without node tests on floats where there is a derivative: see the other files here.
ELSEWHERE = {"Cast", "CastLike", "GatherND", "GlobalLpPool", "MaxRoiPool", "Pow", "Scatter", "Trilu"}
# Cases at which there is no derivative: infinities, NaN, an edge of the domain, casts of those, one that divides by 0,
# a mode without a rule, and results (scores with -inf) that are no numbers.
NOT_SMOOTH = (
    "acosh_example", "cast_", "castlike_", "_edge_cases", "empty_set", "l2normalization_axis_0", "roialign_mode_max",
    "qk_matmul_bias_3d_mask_causal", "qk_matmul_bias_4d_mask_causal", "test_pow", "pow_bcast",
)  # fmt: skip
CASES_EACH = 3
LARGEST = 12000


UNWANTED = ("rois", "attn_mask", "cos_cache", "sin_cache")


def tagged(schema: Any) -> tuple[str, ...]:
    if schema.onnx.name in UNTAGGED:
        return tuple(item.name for item in schema.inputs if item.name not in UNWANTED)
    return tuple(schema.differentiable_inputs)


@cache
def differentiable() -> list[str]:
    tag = onnx.defs.OpSchema.DifferentiationCategory.Differentiable
    found = {
        schema.name
        for schema in onnx.defs.get_all_schemas()
        if schema.domain == "" and any(item.differentiation_category == tag for item in schema.inputs)
    }
    return sorted(found | UNTAGGED)


@cache
def cases_by_operator() -> dict[str, list[Any]]:
    """The smallest cases of each operator, different in their attributes where possible."""
    found: dict[str, list[Any]] = defaultdict(list)
    for name, case in node_cases().items():
        nodes = case.model.graph.node
        if "_expanded" in name or len(nodes) != 1 or nodes[0].domain or any(part in name for part in NOT_SMOOTH):
            continue
        if any(_size(value) > LARGEST for value in case.data_sets[0][0]):
            continue
        found[nodes[0].op_type].append(case)
    chosen: dict[str, list[Any]] = {}
    for operator, cases in found.items():
        distinct: dict[Any, Any] = {}
        for case in cases:
            key = (
                tuple(sorted(str(attribute) for attribute in case.model.graph.node[0].attribute)),
                tuple(bool(name) for name in case.model.graph.node[0].input),
            )
            distinct.setdefault(key, case)
        spread = sorted(distinct.values(), key=lambda case: sum(_size(value) for value in case.data_sets[0][0]))
        spread = spread[: 2 * CASES_EACH]
        chosen[operator] = spread[:: max(len(spread) // CASES_EACH, 1)][:CASES_EACH]
    return chosen


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _size(value: Any) -> int:
    array = as_array(value)
    return int(array.size) if isinstance(array, np.ndarray) else 0


def fixed(module: Module, feeds: dict[str, Any], keep: list[str]) -> None:
    """Make constants of all tensor inputs but those in `keep`."""
    builder = OpBuilder(module.main.block, module.symbols, before=module.main.block.first)
    for argument in list(module.main.inputs):
        value = feeds.get(str(argument.name))
        if argument.name in keep or not isinstance(value, np.ndarray) or value.dtype == object:
            continue
        constant = builder.const(as_data(value), name=argument.name)
        for use in argument.uses:
            use.user._set_operand(use.position, constant)
        module.main.block._remove_argument(argument.index)


@pytest.mark.parametrize("operator", [name for name in differentiable() if name not in REFUSED | ELSEWHERE])
def test_differences_agree(operator: str) -> None:
    definition = opdef.lookup("", operator)
    wanted = tagged(definition.schema) if definition.schema is not None else ()
    names = [parameter.name for parameter in definition.parameters]
    cases = cases_by_operator().get(operator, [])
    moved = 0
    for case in cases:
        node = case.model.graph.node[0]
        feeds = {
            item.name: as_array(value) for item, value in zip(case.model.graph.input, case.data_sets[0][0], strict=True)
        }
        floats = [
            name
            for index, name in enumerate(node.input)
            if name and names[min(index, len(names) - 1)] in wanted and _is_float(feeds[name])
        ]
        if not floats:
            continue
        module = tilewright.load(case.model)
        fixed(module, feeds, floats)
        report = check_gradients(module, feeds, wrt=floats, directions=1)
        assert not report.failures, f"{case.name}\n{report}"
        moved += sum(each.analytic != 0 and not each.kink for each in report.checks)
    assert moved, "no case has a derivative that is not zero"


@pytest.mark.parametrize("operator", sorted(REFUSED))
def test_refusals_name_the_operator(operator: str) -> None:
    case = cases_by_operator()[operator][0]
    with pytest.raises(GradientError, match=opdef.lookup("", operator).name):
        tilewright.vjp(tilewright.load(case.model), ["y"], ["x"])


def test_each_operator_has_a_rule_or_parts() -> None:
    from tilewright.graph.gradients.rules import find_parts, find_rule

    without = []
    for name in differentiable():
        if name == "Scatter":  # deprecated: read as ScatterElements
            continue
        definition = opdef.lookup("", name)
        schema = definition.schema
        assert schema is not None
        body = schema.onnx.has_function or schema.onnx.has_context_dependent_function  # type: ignore[attr-defined]
        own = type(definition).decompose is not OpDefinition.decompose
        if not (find_rule(definition) or find_parts(definition) or body or own):
            without.append(name)
    assert not without


OPTIMIZERS = ("Adagrad", "Adam", "Momentum")


@pytest.mark.parametrize(
    "name", [name for name, case in node_cases().items() if case.model.graph.node[0].op_type in OPTIMIZERS]
)
def test_optimizers_of_the_preview_domain(name: str) -> None:
    case = node_cases()[name]
    assert case.model.graph.node[0].domain == "ai.onnx.preview.training"
    inputs, expected = case.data_sets[0]
    feeds = {item.name: as_array(value) for item, value in zip(case.model.graph.input, inputs, strict=True)}
    found = tilewright.compile(tilewright.load(case.model), target="reference").run(feeds)
    for result, value in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(result, as_array(value), rtol=1e-5)
