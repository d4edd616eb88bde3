"""Whatever operands and attributes an operator is given: types, or an error that says so; never a Python error."""

from __future__ import annotations

import random
import traceback

import numpy as np
import onnx
import onnx.defs
import pytest
from shape_graph import ShapeGraph

from tilewright.graph import dtypes, opdef, types
from tilewright.graph.core import AttributeValue, Operation, Value
from tilewright.graph.data import ArrayData
from tilewright.graph.diagnostics import TypeInferenceError
from tilewright.graph.dims import symbol
from tilewright.graph.infer import InferenceContext, infer_types
from tilewright.graph.types import TensorType, Type

n, m = symbol("n"), symbol("m")
DTYPES = {onnx.TensorProto.DataType.Name(dtype.onnx_code).lower(): dtype for dtype in dtypes.ALL}
# Those that need regions are tested elsewhere.
SCHEMAS = [
    schema
    for schema in sorted(onnx.defs.get_all_schemas(), key=lambda schema: (schema.domain, schema.name))
    if not schema.deprecated
    and schema.name != "Constant"
    and not any(item.type.name == "GRAPH" for item in schema.attributes.values())
]


class Operands:
    """Random operands and attributes for a schema: often wrong in rank, dims, or values."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.graph = ShapeGraph()

    def operation(self, schema: onnx.defs.OpSchema) -> Operation:
        tied: dict[str, str] = {}
        operands = [
            self.operand(item, tied)
            for item in schema.inputs
            for _ in range(self.random.randint(1, 3) if item.option.name == "Variadic" else 1)
        ]
        attributes = {
            name: value
            for name, item in schema.attributes.items()
            if (item.required or self.random.random() < 0.5) and (value := self.attribute(name, item)) is not None
        }
        definition = opdef.lookup(schema.domain, schema.name)
        return Operation(definition, operands, attributes, [types.UNKNOWN] * len(schema.outputs))

    def operand(self, item: onnx.defs.OpSchema.FormalParameter, tied: dict[str, str]) -> Value | None:
        if item.option.name == "Optional" and self.random.random() < 0.4:
            return None
        text = tied.setdefault(item.type_str, self.random.choice(sorted(item.types)))
        type = self.type(text)
        static = type.static_shape if isinstance(type, TensorType) else None
        if isinstance(type, TensorType) and static is not None and type.dtype.bits >= 32 and self.random.random() < 0.6:
            numbers = np.reshape([self.random.randint(-3, 4) for _ in range(int(np.prod(static)))], static)
            return self.graph.builder.const(ArrayData(numbers.astype(type.dtype.numpy)))
        return self.graph.argument(type)

    def type(self, text: str) -> Type:
        shape = [self.random.choice([0, 1, 2, 3, 4, n, m, n + 1]) for _ in range(self.random.randint(0, 5))]
        if text.startswith("tensor(") and self.random.random() < 0.95:
            return types.tensor(DTYPES[text[7:-1]], None if self.random.random() < 0.05 else shape)
        return types.sequence(types.tensor(dtypes.f32, shape)) if text.startswith("seq(tensor") else types.UNKNOWN

    def attribute(self, name: str, item: onnx.defs.OpSchema.Attribute) -> AttributeValue:
        choices = {
            "INT": [-2, -1, 0, 1, 2, 3, 7],
            "INTS": [tuple(self.random.choice([0, 1, 2, 3]) for _ in range(self.random.randint(1, 4)))],
            "FLOAT": [1.5],
        }
        strings = {"equation": ["ij,jk->ik", "...i", "i"], "auto_pad": ["NOTSET", "SAME_UPPER", "VALID"]}
        found = strings.get(name) or choices.get(item.type.name) or [None]
        return self.random.choice(found)


@pytest.mark.parametrize("seed", range(10))
def test_any_operands(seed: int) -> None:
    failures = {}
    inferred = 0
    for index, schema in enumerate(SCHEMAS):
        for round in range(2):
            operands = Operands(seed * 100_000 + index * 10 + round)
            op = operands.operation(schema)
            try:
                found = infer_types(op, InferenceContext(operands.graph.symbols))
            except TypeInferenceError:
                continue
            except Exception:
                failures[schema.name] = f"{op} {[str(v and v.type) for v in op.operands]} {traceback.format_exc()}"
                continue
            inferred += 1
            for result, type in zip(op.results, found, strict=True):
                result.type = type
            for result in op.results:
                InferenceContext(operands.graph.symbols).symbolic(result)
            op.definition.flops(op)
    assert failures == {}
    assert inferred > 200
