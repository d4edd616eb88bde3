"""Arithmetic on one element (domain `element`), legal in the regions of the level "kernel".

The operators are those of a scalar handler (see `graph/ops/scalar.py`), transcendental functions among them: how an
exponential is computed is decided when a kernel becomes loops. `bodies` builds and interprets such regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .. import types
from ..dtypes import DType, bool_
from ..opdef import op, register
from ..ops.scalar import BINARY, UNARY, NumpyScalars
from .base import LoopOp, fault
from .scalar_ops import Constant

if TYPE_CHECKING:
    from ..core import Operation
    from ..infer import InferenceContext
    from ..types import Type

DOMAIN = "element"
_TRUTHS = frozenset({
    "equal", "less", "less_equal", "is_nan", "logical_not", "logical_and", "logical_or", "logical_xor"
})  # fmt: skip


_OF_FLOATS = frozenset({
    "sqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
    "asinh", "acosh", "atanh", "erf", "sigmoid", "quotient",
})  # fmt: skip


def element_dtype(op: Operation, index: int) -> DType:
    """The dtype of operand `index`, which must be one element."""
    value = op.operands[index] if index < len(op.operands) else None
    if value is None or not isinstance(value.type, types.ScalarType):
        raise fault(op, f"needs one element as operand {index}, got {value and value.type}")
    return value.type.dtype


class ElementOp(LoopOp):
    """An operation of a scalar handler. The result is of the first operand's dtype, or bool where it is a truth."""

    outputs = ("result",)

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        dtypes = [element_dtype(op, index) for index in range(len(op.operands))]
        if self.op_type != "pow" and any(dtype is not dtypes[0] for dtype in dtypes):
            raise fault(op, f"needs operands of one dtype, got {', '.join(map(str, dtypes))}")
        if self.op_type in _OF_FLOATS and not dtypes[0].is_float:
            raise fault(op, f"is not defined for {dtypes[0]}")
        return [types.scalar(bool_ if self.op_type in _TRUTHS else dtypes[0])]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return getattr(NumpyScalars(), self.op_type)(*operands)


for _names, _inputs in ((UNARY, ("x",)), (BINARY, ("x", "y"))):
    for _name in _names:
        _facts = {"inputs": _inputs, "__doc__": None}
        register(type(f"Element{_name.title().replace('_', '')}", (ElementOp,), _facts)(DOMAIN, _name))


@op("constant", domain=DOMAIN)
class ElementConstant(Constant):
    """A number. The result's type says which dtype."""


@op("select", domain=DOMAIN)
class ElementSelect(LoopOp):
    """`x` where the condition is true, else `y`."""

    inputs = ("condition", "x", "y")
    outputs = ("result",)

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        condition, x, y = (element_dtype(op, index) for index in range(3))
        if condition is not bool_ or x is not y:
            raise fault(op, f"needs a bool and two elements of one dtype, got {condition}, {x}, {y}")
        return [types.scalar(x)]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return NumpyScalars().select(*operands)


@op("cast", domain=DOMAIN)
class ElementCast(LoopOp):
    """The element as another dtype, converted as `scalar.cast` does."""

    inputs = ("x",)
    outputs = ("result",)
    attributes: ClassVar[dict[str, Any]] = {"to": None}

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        element_dtype(op, 0)
        return [op.attributes["to"]]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return NumpyScalars().cast(operands[0], op.attributes["to"].dtype)


@op("bitcast", domain=DOMAIN)
class ElementBitcast(LoopOp):
    """The bits of the element as a number of another dtype, which is as wide."""

    inputs = ("x",)
    outputs = ("result",)
    attributes: ClassVar[dict[str, Any]] = {"to": None}

    def infer(self, op: Operation, context: InferenceContext | None = None) -> Sequence[Type]:
        given, to = element_dtype(op, 0), op.attributes["to"]
        if given.bits != to.dtype.bits:
            raise fault(op, f"needs numbers of one width, got {given} and {to.dtype}")
        return [to]

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        return NumpyScalars().bitcast(operands[0], op.attributes["to"].dtype)
