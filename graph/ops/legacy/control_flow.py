"""Scan-8: a scan over axis 1 of batched data, with a length for each sequence of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ... import types
from ...core import Block, BlockOutput, Region
from ...data import ArrayData
from ...dims import Dim
from ...dtypes import f32
from ...opdef import Trait
from .base import OldForm, old_form, shape_of

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Operation, Value
    from ...infer import InferenceContext
    from ...types import Type


@old_form({"Scan": (8,)})
class BatchedScan(OldForm):
    """Operand 0 holds the sequence lengths (optional); then initial states [b, ...] and scan inputs [b, s, ...].

    It is a scan over the batch whose body scans one sequence. A sequence that ends early is cut before and filled up
    with zeros after; what lies beyond its end is undefined.
    """

    traits = frozenset({Trait.CONTROL_FLOW})

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        body, inputs = op.regions["body"].block, self._scanned(op)
        states = op.operands[1 : len(op.operands) - len(inputs)]
        first = next((dims for value in inputs if (dims := shape_of(value)) is not None), None)
        found: list[Type] = [types.UNKNOWN if value is None else value.type for value in states]
        counts = first[:2] if first is not None else (context.fresh(), context.fresh())
        return found + [_stacked(value.type, *counts) for value in body.returned[len(states) :]]

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        from ...builder import OpBuilder

        lengths, batched = op.operands[0], [value for value in op.operands[1:] if value is not None]
        inputs = self._scanned(op)
        if lengths is not None:
            batched.insert(0, lengths)
        outer = Block([_element(value.type) for value in batched])
        inner = OpBuilder(outer, builder.symbols, location=builder.location)
        arguments = list(outer.arguments)
        length = arguments.pop(0) if lengths is not None else None
        results = self._one_sequence(op, arguments, len(inputs), length, inner)
        inner.returns(results)
        outer.outputs = [BlockOutput(None, value.type) for value in results]
        scan = builder.create(
            "scan",
            batched,
            {"num_scan_inputs": len(batched)},
            result_types=[result.type for result in op.results],
            regions={"body": Region(outer)},
        )
        return scan.results

    def _scanned(self, op: Operation) -> list[Value | None]:
        return list(op.operands[len(op.operands) - op.attr("num_scan_inputs") :])

    def _one_sequence(
        self, op: Operation, arguments: list[Value], scanned: int, length: Value | None, builder: OpBuilder
    ) -> list[Value]:
        """The results for one sequence: final states, then scan outputs of the full length."""
        from ...clone import clone_block

        states, sequences = arguments[: len(arguments) - scanned], arguments[len(arguments) - scanned :]
        longest = builder.shape(sequences[0], start=0, end=1)
        if length is not None:
            length = builder.reshape(length, [1])
            sequences = [builder.slice(value, [0], length, [0]) for value in sequences]
        body = clone_block(op.regions["body"].block)
        inferred = [state.type for state in states]
        inferred += [_stacked(value.type, builder.symbols.fresh()) for value in body.returned[len(states) :]]
        scan = builder.create(
            "scan",
            [*states, *sequences],
            {"num_scan_inputs": scanned, "scan_input_directions": op.attr("directions")},
            result_types=inferred,
            regions={"body": Region(body)},
        )
        if length is None:
            return list(scan.results)
        missing = builder.sub(longest, length)
        filled = [_filled(value, missing, builder) for value in scan.results[len(states) :]]
        return [*scan.results[: len(states)], *filled]


def _filled(value: Value, missing: Value, builder: OpBuilder) -> Value:
    """`value` with `missing` zeros after it, along axis 0."""
    zeros = builder.concat(missing, builder.shape(value, start=1), axis=0)
    dtype = value.type.dtype if isinstance(value.type, types.TensorType) else f32
    padding = builder.constant_of_shape(zeros, value=ArrayData(np.zeros(1, dtype.numpy), dtype))
    result: Value = builder.concat(value, padding, axis=0)
    return result


def _stacked(type: Type, *counts: Dim) -> Type:
    """The type of as many elements, along new axes in front."""
    if not isinstance(type, types.TensorType):
        return types.UNKNOWN
    return types.tensor(type.dtype, None if type.shape is None else [*counts, *type.shape])


def _element(type: Type) -> Type:
    """The type of one element along axis 0."""
    if not isinstance(type, types.TensorType):
        return types.UNKNOWN
    return types.tensor(type.dtype, None if type.shape is None else type.shape[1:])
