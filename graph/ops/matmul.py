"""Matrix products: sums of products over a shared dim."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import dtypes
from ..dims import Dim, product, prove_equal
from ..opdef import Trait, op
from .common import (
    Shape,
    TensorOp,
    broadcast,
    broadcast_dims,
    dtype_of,
    error,
    format_shape,
    has_operand,
    require_rank,
    result_elements,
    same_dim,
    shape_of,
)
from .numeric import check_same_dtype, summable

if TYPE_CHECKING:
    from ..core import Operation
    from ..dtypes import DType
    from ..infer import InferenceContext

CONTRACTION = frozenset({Trait.CONTRACTION})


class MatrixProduct(TensorOp):
    """numpy's matmul of operands `left` and `right`: batch dims are broadcast, vectors count as one row or column."""

    traits = CONTRACTION
    left, right = 0, 1

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        a, b = self.factor(op, self.left), self.factor(op, self.right)
        for shape in (a, b):
            if shape == ():
                raise error(
                    "shape/matmul-k", f"{op.name} of {format_shape(a)} and {format_shape(b)}: no dim to sum over"
                )
        if a is None or b is None:
            return None
        self._summed(op, a, b, context)
        batch = broadcast(op, [a[:-2], b[:-2]], context)
        rows = a[-2:-1]
        columns = b[-1:] if len(b) > 1 else ()
        return (*(batch or ()), *rows, *columns)

    def factor(self, op: Operation, index: int) -> Shape | None:
        """The shape with which operand `index` takes part in the product."""
        return shape_of(op, index)

    def _summed(self, op: Operation, a: Shape, b: Shape, context: InferenceContext) -> Dim:
        mismatch = functools.partial(
            error,
            "shape/matmul-k",
            f"{op.name} of {format_shape(a)} and {format_shape(b)}: {a[-1]} columns do not fit "
            f"{b[-2] if len(b) > 1 else b[-1]} rows",
        )
        return same_dim(a[-1], b[-2] if len(b) > 1 else b[-1], context, mismatch)

    def flops(self, op: Operation) -> Dim | None:
        elements, shape = result_elements(op), self.factor(op, self.left)
        return None if elements is None or not shape else 2 * elements * shape[-1]


@op("MatMul")
class MatMul(MatrixProduct):
    """The product of two matrices, or of stacks of them."""

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        check_same_dtype("matmul", *operands)
        left, right = operands
        a, b = summable(left), summable(right)
        if a.ndim > 2 and b.ndim == 2:
            # One product of large matrices is faster than many of small ones.
            rows = math.prod(a.shape[:-1])
            product = (a.reshape(rows, a.shape[-1]) @ b).reshape(*a.shape[:-1], b.shape[1])
        else:
            product = np.asarray(a @ b)
        return product.astype(left.dtype, copy=False)


@op("MatMulInteger")
class MatMulInteger(MatrixProduct):
    """The product of 8-bit matrices, each less its zero point, summed in i32."""

    def result_dtype(self, op: Operation) -> DType | None:
        return dtypes.i32


@op("QLinearMatMul")
class QLinearMatMul(MatrixProduct):
    """The product of quantized matrices, quantized again."""

    right = 3

    def result_dtype(self, op: Operation) -> DType | None:
        return dtype_of(op, 7)


@op("Gemm")
class Gemm(TensorOp):
    """alpha * A @ B + beta * C of matrices, A and B transposed on demand, C broadcast to the result."""

    traits = CONTRACTION

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        a, b = self._matrix(op, 0, context), self._matrix(op, 1, context)
        mismatch = functools.partial(
            error,
            "shape/matmul-k",
            f"gemm of {format_shape(a)} and {format_shape(b)} (after transposition): {a[1]} columns do not fit "
            f"{b[0]} rows",
        )
        same_dim(a[1], b[0], context, mismatch)
        result = (a[0], b[1])
        bias = shape_of(op, 2)
        if bias is not None:
            both = broadcast(op, [result, bias], context)
            grows = both is not None and any(prove_equal(x, y) is False for x, y in zip(result, both[-2:], strict=True))
            if len(bias) > 2 or grows:
                raise error("shape/broadcast", f"gemm cannot broadcast {format_shape(bias)} to {format_shape(result)}")
        return result

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        check_same_dtype("gemm", *operands)
        a, b, c = (*operands, None)[:3]
        alpha, beta = op.attr("alpha"), op.attr("beta")
        product = summable(a.T if op.attr("transA") else a) @ summable(b.T if op.attr("transB") else b)
        result = product if alpha == 1 else product * alpha
        if c is not None and beta != 0:
            result = result + (summable(c) if beta == 1 else summable(c) * beta)
        return np.asarray(result).astype(a.dtype, copy=False)

    def _matrix(self, op: Operation, index: int, context: InferenceContext) -> Shape:
        shape = shape_of(op, index)
        if shape is None:
            return context.fresh(), context.fresh()
        require_rank(op, index, shape, 2)
        return shape[::-1] if op.attr("transA" if index == 0 else "transB") else shape

    def flops(self, op: Operation) -> Dim | None:
        elements, shape = result_elements(op), shape_of(op, 0)
        if elements is None or shape is None:
            return None
        bias = elements if has_operand(op, 2) else 0
        return 2 * elements * shape[0 if op.attr("transA") else 1] + bias


@op("Einsum")
class Einsum(TensorOp):
    """Einstein summation: letters name dims; those missing from the result are summed over."""

    traits = CONTRACTION

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        terms, output = _equation(op.attr("equation"), len(op.operands))
        shapes = [shape_of(op, index) for index in range(len(op.operands))]
        letters, ellipsis = self._named_dims(op, terms, shapes, context)
        if "..." in output and ellipsis is None:
            return None
        result: list[Dim] = []
        for item in _items(output):
            if item == "...":
                result.extend(ellipsis or ())
            elif item in letters:
                result.append(letters[item])
            else:
                result.append(context.fresh())
        return result

    def _named_dims(
        self, op: Operation, terms: list[str], shapes: list[Shape | None], context: InferenceContext
    ) -> tuple[dict[str, Dim], Shape | None]:
        """The dim of each letter, and the broadcast dims that "..." stands for (None: not all ranks are known)."""
        letters: dict[str, Dim] = {}
        covered: list[Shape | None] = []
        for term, shape in zip(terms, shapes, strict=True):
            items = _items(term)
            if shape is None:
                covered.append(None if "..." in items else ())
                continue
            hidden = len(shape) - (len(items) - ("..." in items))
            if hidden < 0 or (hidden and "..." not in items):
                raise error("shape/einsum", f"einsum term {term!r} does not fit the shape {format_shape(shape)}")
            position = 0
            for item in items:
                if item == "...":
                    covered.append(shape[position : position + hidden])
                    position += hidden
                    continue
                dim = broadcast_dims(letters.get(item, 1), shape[position], context)
                if dim is None:
                    raise error("shape/einsum", f"einsum letter {item!r} is both {letters[item]} and {shape[position]}")
                letters[item] = dim
                position += 1
        return letters, broadcast(op, covered, context)

    def flops(self, op: Operation) -> Dim | None:
        if result_elements(op) is None:
            return None
        terms, _ = _equation(op.attr("equation"), len(op.operands))
        dims: dict[str, Dim] = {}
        for index, term in enumerate(terms):
            shape = shape_of(op, index)
            if shape is None or "..." in term:
                return None
            dims.update(zip(term, shape, strict=True))
        return len(terms) * product(dims.values())


def _equation(equation: str, operands: int) -> tuple[list[str], str]:
    """The operands' terms and the result's; without "->" the result has the letters that occur once, sorted."""
    left, arrow, output = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != operands:
        raise error("shape/einsum", f"einsum equation {equation!r} has {len(terms)} terms for {operands} operands")
    if not arrow:
        counts = Counter(item for term in terms for item in _items(term))
        output = "".join(sorted(item for item, count in counts.items() if count == 1 and item != "..."))
        output = ("..." if "..." in counts else "") + output
    return terms, output


def _items(term: str) -> list[str]:
    return re.findall(r"\.\.\.|\w", term)
