"""Operators on strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dtypes, types
from ..dims import Dim
from ..opdef import OpDefinition, Trait, op
from ..types import Type
from .common import TensorOp, require_rank, shape_of
from .elementwise import Elementwise

if TYPE_CHECKING:
    from ..core import Operation
    from ..infer import InferenceContext


@op("StringConcat")
class StringConcat(Elementwise):
    """Each string followed by the other operand's."""

    traits = frozenset({Trait.ELEMENTWISE, Trait.BROADCAST})


@op("RegexFullMatch")
class RegexFullMatch(Elementwise):
    """Whether the whole string matches `pattern` (RE2 syntax)."""

    dtype = dtypes.bool_


@op("StringNormalizer")
class StringNormalizer(TensorOp):
    """[n] or [1, n] strings in one case, without the stop words; if all of them are, one empty string is left.

    As in ONNX Runtime: empty strings stay, and letters keep their accents.
    """

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape = shape_of(op, 0)
        if shape is None:
            return None
        require_rank(op, 0, shape, 1, at_least=True)
        return shape if not op.attr("stopwords") else [*shape[:-1], context.fresh(1)]

    def evaluate(self, op: Operation, strings: np.ndarray) -> Any:
        change = {"LOWER": str.lower, "UPPER": str.upper}.get(op.attr("case_change_action"), str)
        compared: Callable[[str], str] = str if op.attr("is_case_sensitive") else str.lower
        stop_words = {compared(word) for word in op.attr("stopwords") or ()}
        kept = [change(text) for text in strings.ravel().tolist() if compared(text) not in stop_words]
        if stop_words and not kept:
            kept = [""]
        return np.array(kept, object).reshape(*strings.shape[:-1], len(kept))


@op("StringSplit")
class StringSplit(OpDefinition):
    """The parts of each string along a new last dim, padded with empty strings; and how many there are (i64)."""

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        shape = shape_of(op, 0)
        parts = None if shape is None else [*shape, context.fresh()]
        return [types.tensor(dtypes.string, parts), types.tensor(dtypes.i64, shape)]
