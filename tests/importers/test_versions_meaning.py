"""Opset history: older forms of a node, and what they become again, compute the same."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.helper
import pytest
from node_cases import node_cases
from onnx import AttributeProto
from runtimes import agree, array_of, run
from sample_nodes import OPERATORS, Facts, plain, schema_of, to_proto

from tilewright.graph import types
from tilewright.graph.core import Block, Operation, Value
from tilewright.graph.data import TensorData
from tilewright.graph.evaluation import evaluate_op, type_of
from tilewright.graph.onnx_values import attribute_value, tensor_proto
from tilewright.graph.opdef import lookup
from tilewright.importers.onnx.versions import CannotDowngrade, Node, downgrade, upgrade

TARGETS = (21, 18, 17, 13, 11, 9, 7)


class Case:
    """A node test of ONNX with one node: its model, inputs by name, expected outputs."""

    def __init__(self, case: Any) -> None:
        self.name = case.name
        self.graph = case.model.graph
        (self.proto,) = self.graph.node
        self.opset = next(item.version for item in case.model.opset_import if item.domain == "")
        inputs, outputs = case.data_sets[0]
        names = [item.name for item in self.graph.input]
        given = inputs if isinstance(inputs, dict) else dict(zip(names, inputs, strict=False))
        self.feeds = {name: array_of(value) for name, value in given.items()}
        self.expected = [array_of(item) for item in (outputs.values() if isinstance(outputs, dict) else outputs)]

    def node(self) -> tuple[Node, Facts]:
        """The node; small operands but the first count as constants, with the numbers that the test feeds."""
        facts, values = Facts(), dict[str, Value]()
        for name in filter(None, self.proto.input):
            array = self.feeds[name]
            values[name] = Value(type_of(array), Block(), 0, name)
            if name != self.proto.input[0] and isinstance(array, np.ndarray) and array.size <= 16:
                facts.constants[values[name]] = array
        attributes = {item.name: attribute_value(item) for item in self.proto.attribute}
        inputs = [values[name] if name else None for name in self.proto.input]
        node = Node("", self.proto.op_type, attributes, list(inputs), len(self.proto.output))
        given = iter(self.expected)
        node.output_types = tuple(type_of(next(given)) if name else types.UNKNOWN for name in self.proto.output)
        return node, facts

    def model(self, node: Node, opset: int) -> onnx.ModelProto:
        proto = to_proto(node, opset)
        del proto.output[:]
        proto.output.extend(self.proto.output)
        initializers = []
        for index, value in enumerate(node.inputs):
            if isinstance(value, TensorData):
                proto.input[index] = f"constant{index}"
                initializers.append(tensor_proto(value, proto.input[index]))
            elif value is not None:
                proto.input[index] = str(value.name)
        used = [item for item in self.graph.input if item.name in proto.input]
        graph = onnx.helper.make_graph([proto], "g", used, list(self.graph.output), initializer=initializers)
        imports = [onnx.helper.make_opsetid("", opset)]
        return onnx.helper.make_model(graph, opset_imports=imports, ir_version=8 if opset < 21 else 10)

    def evaluate(self, node: Node) -> list[Any]:
        """The results of a node of today, by our own definitions."""
        arrays = [
            item.numpy() if isinstance(item, TensorData) else None if item is None else self.feeds[str(item.name)]
            for item in node.inputs
        ]
        values = [None if array is None else Value(type_of(array), Block(), 0) for array in arrays]
        results = [types.UNKNOWN] * node.output_count
        definition = lookup("", node.op_type, node.version)
        op = Operation(definition, values, node.attributes, results, result_names=self.proto.output)
        return [found for found, name in zip(evaluate_op(op, arrays), self.proto.output, strict=True) if name]


@cache
def cases() -> dict[str, list[Case]]:
    """Node tests of one node of the default domain without graphs in attributes, by operator."""
    found: dict[str, list[Case]] = {}
    for name, case in node_cases().items():
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].domain or any(item.type == AttributeProto.GRAPH for item in nodes[0].attribute):
            continue
        if any(item.domain for item in case.model.opset_import) or "bernoulli" in name:
            continue
        found.setdefault(nodes[0].op_type, []).append(Case(case))
    return found


# ONNX Runtime wants other element types here, and onnx.reference has no old version.
NOT_RUN = {"test_dequantizelinear": (18, 17, 13, 11)}


@pytest.mark.slow
@pytest.mark.parametrize("op_type", OPERATORS)
def test_older_forms_mean_the_same(op_type: str) -> None:
    """Node tests, taken down to older opsets, give the same numbers in a runtime, and taken up again in ours."""
    for case in cases().get(op_type, ()):
        node, facts = case.node()
        now = upgrade(node, case.opset, facts)
        assert plain(downgrade(now, case.opset, facts), case.opset) == plain(node, case.opset)
        original: bool | None = None
        seen = set()
        for target in TARGETS:
            try:
                older = downgrade(now, target, facts)
            except CannotDowngrade:
                continue
            since = schema_of(older.op_type, target).since_version
            if target >= case.opset or since in seen:
                continue
            seen.add(since)
            if target not in NOT_RUN.get(case.name, ()) and not agree(
                run(case.model(older, target), case.feeds), case.expected
            ):
                if original is None:
                    original = agree(run(case.model(node, case.opset), case.feeds), case.expected)
                assert not original, f"{case.name} at opset {target}"
            older.legacy.clear()
            again = upgrade(older, target, facts)
            assert agree(case.evaluate(again), case.expected), f"{case.name} up again from opset {target}"
