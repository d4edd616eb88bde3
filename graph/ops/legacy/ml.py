"""LabelEncoder-1 of ai.onnx.ml: between strings and their positions in a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ... import types
from ...dtypes import string
from ...opdef import register
from .base import OldForm, today

if TYPE_CHECKING:
    from ...builder import OpBuilder
    from ...core import Operation, Value


class LabelEncoder(OldForm):
    """Strings become their index in `classes_strings`, integers the string at that index; else a default."""

    def parts(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        data, classes = op.operands[0], op.attr("classes_strings")
        if classes is None or data is None or not isinstance(data.type, types.TensorType):
            return None
        indices = tuple(range(len(classes)))
        if data.type.dtype is string:
            default = {"default_int64": op.attr("default_int64")}
            return today(builder, op, attributes={"keys_strings": classes, "values_int64s": indices, **default})
        default = {"default_string": op.attr("default_string")}
        return today(builder, op, attributes={"keys_int64s": indices, "values_strings": classes, **default})


register(LabelEncoder("ai.onnx.ml", "LabelEncoder", 1))
