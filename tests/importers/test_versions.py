"""Opset history: every change has its step, and going up and down again gives the node back."""

from __future__ import annotations

import itertools
from typing import Any

import onnx.defs
import pytest
from onnx import AttributeProto
from sample_nodes import OPERATORS, check, plain, sample_nodes, schema_of

from tilewright.graph.module import INTERNAL_OPSET
from tilewright.graph.onnx_values import attribute_value
from tilewright.importers.onnx.versions import CannotDowngrade, downgrade, upgrade
from tilewright.importers.onnx.versions.conformance import conform
from tilewright.importers.onnx.versions.engine import registered_steps, versions

ALL_VERSIONS = [(op_type, version) for op_type in OPERATORS for version in versions(op_type)]
LIVE_VERSIONS = [(op_type, version) for op_type, version in ALL_VERSIONS if not schema_of(op_type, version).deprecated]


# ---- completeness ----------------------------------------------------------------------------------------------------


def test_every_step_leads_to_a_version_of_its_operator() -> None:
    assert {step for step in registered_steps() if step[1] not in versions(step[0])} == set()


def is_additive(old: onnx.defs.OpSchema, new: onnx.defs.OpSchema) -> bool:
    """Whether every node of the old version is one of the new, with the same meaning as far as signatures tell."""
    if new.deprecated or len(new.inputs) < len(old.inputs) or len(new.outputs) < len(old.outputs):
        return False
    for name, spec in old.attributes.items():
        now = new.attributes.get(name)
        if now is None or now.type != spec.type or (now.required and not spec.required):
            return False
        if attribute_text(now) != attribute_text(spec):
            return False
    optional = onnx.defs.OpSchema.FormalParameterOption.Single
    appended = new.inputs[len(old.inputs) :]
    required = [name for name in new.attributes if name not in old.attributes and new.attributes[name].required]
    return not required and not any(item.option == optional for item in appended)


def attribute_text(spec: Any) -> Any:
    return None if spec.default_value.type == AttributeProto.UNDEFINED else attribute_value(spec.default_value)


@pytest.mark.parametrize("op_type", OPERATORS)
def test_every_change_of_a_signature_has_a_step(op_type: str) -> None:
    for old, new in itertools.pairwise(versions(op_type)):
        if not is_additive(schema_of(op_type, old), schema_of(op_type, new)):
            # Constant is read and written by the importer itself.
            assert (op_type, new) in registered_steps() or op_type == "Constant", f"{op_type} {old} -> {new}"


@pytest.mark.parametrize(("op_type", "version"), LIVE_VERSIONS)
def test_upgraded_nodes_are_nodes_of_today(op_type: str, version: int) -> None:
    for node, facts in sample_nodes(op_type, version):
        check(node, version)
        result = upgrade(node, version, facts)
        if result.version is not None:
            assert result.version == version
            assert plain(result, version) == plain(node, version)
            continue
        conform(result.copy(), None, INTERNAL_OPSET, facts)
        check(result, INTERNAL_OPSET)


@pytest.mark.parametrize(("op_type", "version"), LIVE_VERSIONS)
def test_down_again_gives_the_node_back(op_type: str, version: int) -> None:
    for node, facts in sample_nodes(op_type, version):
        back = downgrade(upgrade(node, version, facts), version, facts)
        assert plain(back, version) == plain(node, version)
        assert back.version is None


@pytest.mark.parametrize(("op_type", "version"), LIVE_VERSIONS)
def test_older_forms_are_nodes_of_their_opset(op_type: str, version: int) -> None:
    for node, facts in sample_nodes(op_type, version):
        now = upgrade(node, version, facts)
        for target in {1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17, 18, 20, 22, 24, 27}:
            try:
                older = downgrade(now, target, facts)
            except CannotDowngrade:
                continue
            check(older, target)
