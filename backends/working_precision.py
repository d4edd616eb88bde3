"""How precise the outputs of a model can be, given the types that it computes in.

A float32 result that went through float16 has no more digits than float16 gave it. Nor is it the same wherever it is
computed: a runtime without float16 arithmetic (ONNX Runtime's on CPUs) computes in float32 and rounds where its casts
happen to stand, so that even removing an Identity changes the last digits of float16.
"""

from __future__ import annotations

from ..graph.core import Operation, Value
from ..graph.dtypes import DType
from ..graph.module import Module
from ..graph.types import TensorType
from ..passes.agreement import TOLERANCES, tolerance_for


def narrow_outputs(module: Module) -> dict[str, DType]:
    """The floating-point outputs that operations with results in a narrower floating type lead to, and that type.

    Constants of a narrow type do not count: they are exact.
    """
    found = {}
    terminator = module.main.block.terminator
    for name, value in zip(module.main.output_names, terminator.operands, strict=True):
        if value is None or not isinstance(value.type, TensorType) or value.type.dtype.name not in TOLERANCES:
            continue
        types = {dtype.name: dtype for dtype in _computed_types(value) if dtype.name in TOLERANCES}
        widest = max(types.values(), key=tolerance_for, default=None)
        if widest is not None and tolerance_for(widest) > tolerance_for(value.type.dtype):
            found[name] = widest
    return found


def _computed_types(output: Value) -> set[DType]:
    """The element types of all results that `output` depends on, those in subgraphs included."""
    types: set[DType] = set()
    seen: set[Operation] = set()
    work = [output.producer]
    while work:
        op = work.pop()
        if op is None or op in seen or op.name == "const":
            continue
        seen.add(op)
        types |= {result.type.dtype for result in op.results if isinstance(result.type, TensorType)}
        work += [operand.producer for operand in op.operands if operand is not None]
        work += [inner for region in op.regions.values() for inner in region.walk()]
    return types
