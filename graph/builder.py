"""Creating operations: `OpBuilder` inserts them at a place in a block and infers their types.

Passes, rules, decompositions and importers build with it; users build whole models with `model_builder.Builder`,
which sits on top.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from . import opdef
from .core import AttributeReference, AttributeValue, Block, Metadata, Operation, Region, Value
from .data import TensorData, as_data
from .diagnostics import UsageError
from .infer import InferenceContext, infer_types
from .location import UNKNOWN, Location
from .opdef import OpDefinition, ParameterKind
from .types import UNKNOWN as UNKNOWN_TYPE
from .types import Type

if TYPE_CHECKING:
    from .dims import FreshSymbols
    from .dtypes import DType

# What may stand for an operand: a value, nothing (optional input left out), or something to make a constant of.
OperandLike: TypeAlias = "Value | TensorData | np.ndarray | np.generic | int | float | bool | Sequence[Any] | None"


class OpBuilder:
    """Creates operations before `before` in `block`, or at its end.

    Every operator is a method under its IR name, inputs first, attributes by keyword; one result is returned as a
    Value, several as a tuple:

        b.matmul(x, w)        b.split(x, sizes, axis=1, outputs=3)        b.layer_normalization(x, scale, axis=-1)

    Numbers, lists and arrays given as operands become constants (Python ints i64, floats f32, or the dtype of the
    first value operand if the schema ties both to one type). `on_create` is called with each new operation.
    """

    def __init__(
        self,
        block: Block,
        symbols: FreshSymbols,
        before: Operation | None = None,
        location: Location = UNKNOWN,
        on_create: Callable[[Operation], None] | None = None,
    ) -> None:
        self.block = block
        self.before = before
        self.location = location
        self.symbols = symbols
        self.on_create = on_create

    def create(
        self,
        definition: OpDefinition | str,
        operands: Sequence[OperandLike] = (),
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        outputs: int | None = None,
        result_types: Sequence[Type] | None = None,
        result_names: Sequence[str | None] = (),
        regions: Mapping[str, Region] | None = None,
        metadata: Metadata | None = None,
        location: Location | None = None,
    ) -> Operation:
        """Create, type and insert one operation.

        `outputs` is the number of results (default: the schema's required ones, at least one). Types are inferred
        unless `result_types` gives them. Raises TypeInferenceError if the operands do not fit, UsageError for an
        unknown operator or attribute, or a wrong number of operands.
        """
        if isinstance(definition, str):
            definition = _named(definition)
        attributes = {name: _attribute(value) for name, value in (attributes or {}).items() if value is not None}
        _check_signature(definition, operands, attributes, regions or {})
        values = self._operands(definition, operands)
        count = len(result_types) if result_types is not None else outputs or _result_count(definition)
        op = Operation(
            definition,
            values,
            attributes,
            result_types if result_types is not None else [UNKNOWN_TYPE] * count,
            result_names=result_names,
            regions=regions,
            location=self.location if location is None else location,
            metadata=metadata,
        )
        if result_types is None:
            try:
                inferred = infer_types(op, InferenceContext(self.symbols))
            except Exception:
                op._drop_operands()
                raise
            for result, type in zip(op.results, inferred, strict=True):
                result.type = type
        self.insert(op)
        return op

    def insert(self, op: Operation) -> Operation:
        """Insert a detached operation at this builder's place."""
        self.block._insert(op, self.before)
        if self.on_create is not None:
            self.on_create(op)
        return op

    def const(self, value: Any, dtype: DType | None = None, name: str | None = None) -> Value:
        """A constant: array, number, nested list or TensorData; Python floats become f32, ints i64."""
        data = as_data(value, dtype)
        op = self.create("const", (), {"value": data}, result_types=[data.type], result_names=[name])
        return op.result

    def returns(self, values: Sequence[Value]) -> Operation:
        """The block's terminator."""
        return self.create("return", values, result_types=[])

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        definition = _named(name.rstrip("_"))

        def call(*operands: OperandLike, outputs: int | None = None, **attributes: AttributeValue) -> Any:
            op = self.create(definition, operands, attributes, outputs=outputs)
            return op.results[0] if len(op.results) == 1 else op.results

        call.__name__ = name
        return call

    def _operands(self, definition: OpDefinition, operands: Sequence[OperandLike]) -> list[Value | None]:
        values: list[Value | None] = []
        for index, operand in enumerate(operands):
            if operand is None or isinstance(operand, Value):
                values.append(operand)
            else:
                values.append(self.const(operand, self._partner_dtype(definition, operands, index, operand)))
        while values and values[-1] is None:
            values.pop()
        return values

    def _partner_dtype(
        self, definition: OpDefinition, operands: Sequence[OperandLike], index: int, operand: OperandLike
    ) -> DType | None:
        """The dtype a Python number takes: that of an operand the schema gives the same type variable."""
        from .types import TensorType

        schema = definition.schema
        if schema is None or isinstance(operand, TensorData | np.ndarray | np.generic):
            return None
        formals = schema.onnx.inputs
        wanted = formals[min(index, len(formals) - 1)].type_str
        for position, other in enumerate(operands):
            same = formals[min(position, len(formals) - 1)].type_str == wanted
            if same and isinstance(other, Value) and isinstance(other.type, TensorType):
                return other.type.dtype
        return None


def _named(name: str) -> OpDefinition:
    definition = opdef.find_by_name(name)
    if definition is None:
        import difflib

        from .onnx_schema import standard_names

        close = difflib.get_close_matches(name, standard_names(), 3)
        hint = [f"did you mean {', '.join(close)}?"] if close else []
        raise UsageError("op/unknown", f"there is no operator called {name!r}", notes=hint)
    return definition


def _attribute(value: Any) -> AttributeValue:
    """Lists become tuples, dtypes, those of numpy too, their ONNX code (as `Cast.to` wants it), arrays constants,
    numpy's scalars numbers."""
    from .dtypes import DType, from_numpy

    if isinstance(value, AttributeReference):
        return value
    if isinstance(value, list | tuple):
        return tuple(map(_attribute, value))
    if isinstance(value, DType):
        return value.onnx_code
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return from_numpy(np.dtype(value)).onnx_code
    if isinstance(value, np.ndarray):
        return as_data(value)
    return value.item() if isinstance(value, np.generic) else value


def _result_count(definition: OpDefinition) -> int:
    """The results that there always are; the first one where all may be left out, as an LSTM's."""
    parameters = definition.result_parameters
    return sum(parameter.kind is not ParameterKind.OPTIONAL for parameter in parameters) or min(len(parameters), 1)


def _check_signature(
    definition: OpDefinition,
    operands: Sequence[OperandLike],
    attributes: Mapping[str, AttributeValue],
    regions: Mapping[str, Region],
) -> None:
    if not definition.is_known:
        return
    parameters = definition.parameters
    variadic = bool(parameters) and parameters[-1].kind is ParameterKind.VARIADIC
    required = sum(parameter.kind is ParameterKind.REQUIRED for parameter in parameters)
    if len(operands) > len(parameters) and not variadic:
        raise UsageError(
            "op/operand-count", f"{definition.name} takes at most {len(parameters)} inputs, got {len(operands)}"
        )
    missing = [p.name for i, p in enumerate(parameters[:required]) if i >= len(operands) or operands[i] is None]
    if missing and definition.schema is not None:
        raise UsageError("op/operand-missing", f"{definition.name} needs its input {missing[0]!r}")
    specs = definition.attribute_specs
    unknown = [name for name in attributes if name not in specs]
    if unknown and not definition.is_terminator:
        raise UsageError(
            "op/attribute-unknown",
            f"{definition.name} has no attribute {unknown[0]!r}",
            notes=[f"its attributes are {', '.join(specs) or 'none'}"],
        )
    absent = [s.name for s in specs.values() if s.required and s.name not in attributes and s.name not in regions]
    if absent:
        raise UsageError("op/attribute-missing", f"{definition.name} needs its attribute {absent[0]!r}")
    is_standard = definition.schema is not None
    for name, value in attributes.items():
        wanted = _PYTHON_TYPES.get(specs[name].kind) if is_standard and name in specs else None
        if wanted is not None and not isinstance(value, wanted):
            kind = specs[name].kind
            article = "an" if kind[0] in "aeiou" and not kind.endswith("s") else "a"
            what = f"a list of {kind}" if kind.endswith("s") else f"{article} {kind}"
            raise UsageError("op/attribute-type", f"{definition.name} takes {what} as {name!r}, not {value!r}")


# What an attribute of a kind is in Python; in a function it may be that of a call.
_LIST = (tuple, AttributeReference)
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int, AttributeReference), "float": (int, float, AttributeReference),
    "string": (str, bytes, AttributeReference), "ints": _LIST, "floats": _LIST, "strings": _LIST,
}  # fmt: skip
