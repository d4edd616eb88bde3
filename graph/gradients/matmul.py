"""Derivatives of matrix products."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..ops.matmul import _equation, _items
from .rules import Adjoint, gradient_of

if TYPE_CHECKING:
    from ..core import Operation, Value
    from .builder import GradientBuilder


def _transposed(b: GradientBuilder, matrix: Value) -> Value:
    """The last two dims exchanged."""
    rank = b.rank(matrix)
    result: Value = b.transpose(matrix, perm=[*range(rank - 2), rank - 1, rank - 2])
    return result


@gradient_of("MatMul")
def matmul(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """g B^T and A^T g, summed over batch dims that were broadcast; a vector is a matrix of one row or column."""
    left, right = op.operand_values
    grad = grads[0]
    assert grad is not None
    ranks = b.rank(left), b.rank(right)
    rows = left if ranks[0] > 1 else b.unsqueeze(left, b.ints([0]))
    columns = right if ranks[1] > 1 else b.unsqueeze(right, b.ints([1]))
    if ranks[1] == 1:
        grad = b.unsqueeze(grad, b.ints([-1]))
    if ranks[0] == 1:
        grad = b.unsqueeze(grad, b.ints([-2]))
    to_left = to_right = None
    if b.needs(left):
        to_left = b.reshape_like(b.sum_to(b.matmul(grad, _transposed(b, columns)), rows), left)
    if b.needs(right) and b.rank(columns) == 2 and b.rank(rows) > 2:
        # One product of all rows, instead of many products that would be summed.
        flat = [b.reshape(each, b.concat(b.ints([-1]), b.dim(each, -1), axis=0)) for each in (rows, grad)]
        to_right = b.reshape_like(b.matmul(_transposed(b, flat[0]), flat[1]), right)
    elif b.needs(right):
        to_right = b.reshape_like(b.sum_to(b.matmul(_transposed(b, rows), grad), columns), right)
    return [to_left, to_right]


@gradient_of("Gemm")
def gemm(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    a, w, bias = (*op.operands, None)[:3]
    grad, alpha = grads[0], op.attr("alpha")
    assert grad is not None
    adjoints: list[Adjoint] = [None, None, None]
    across_a, across_w = bool(op.attr("transA")), bool(op.attr("transB"))
    if b.needs(a):
        factors = (w, grad) if across_a else (grad, w)
        flags = (across_w, True) if across_a else (False, not across_w)
        adjoints[0] = b.gemm(*factors, alpha=alpha, transA=int(flags[0]), transB=int(flags[1]))
    if b.needs(w):
        factors = (grad, a) if across_w else (a, grad)
        flags = (True, across_a) if across_w else (not across_a, False)
        adjoints[1] = b.gemm(*factors, alpha=alpha, transA=int(flags[0]), transB=int(flags[1]))
    if bias is not None and b.needs(bias):
        beta = op.attr("beta")
        adjoints[2] = b.sum_to(grad if beta == 1 else b.mul(grad, beta), bias)
    return adjoints


@gradient_of("Einsum")
def einsum(op: Operation, grads: Sequence[Value | None], b: GradientBuilder) -> Sequence[Adjoint]:
    """The same summation with the adjoint in the place of the result, and the result that of the operand."""
    grad = grads[0]
    assert grad is not None
    terms, output = _spelled_out(op, b)
    return [
        _einsum_adjoint(op, index, terms, output, grad, b) if b.needs(operand) else None
        for index, operand in enumerate(op.operand_values)
    ]


def _spelled_out(op: Operation, b: GradientBuilder) -> tuple[list[list[str]], list[str]]:
    """The equation as lists of letters, the dims that "..." stands for with letters of their own."""
    terms, output = _equation(op.attr("equation"), len(op.operands))
    free = [letter for letter in string.ascii_letters if letter not in "".join(terms)]
    hidden = [
        b.rank(operand) - len(_items(term)) + 1 if "..." in term else 0
        for term, operand in zip(terms, op.operand_values, strict=True)
    ]
    names = free[: max(hidden, default=0)]

    def letters(term: str, count: int) -> list[str]:
        items: list[str] = []
        for item in _items(term):
            items.extend(names[len(names) - count :] if item == "..." else [item])
        return items

    spelled = [letters(term, count) for term, count in zip(terms, hidden, strict=True)]
    return spelled, letters(output, len(names))


def _einsum_adjoint(
    op: Operation, index: int, terms: list[list[str]], output: list[str], grad: Value, b: GradientBuilder
) -> Adjoint:
    operand = op.operand_values[index]
    term = terms[index]
    factors: list[Any] = [grad]
    equation = ["".join(output)]
    for position, (other, value) in enumerate(zip(terms, op.operand_values, strict=True)):
        if position != index:
            factors.append(value)
            equation.append("".join(other))
    taken = {letter for each in equation for letter in each}
    known = list(dict.fromkeys(letter for letter in term if letter in taken))
    found: Value = b.einsum(*factors, equation=f"{','.join(equation)}->{''.join(known)}")
    # Letters that only this operand has were summed over: every element along them has the same adjoint.
    unique = list(dict.fromkeys(term))
    missing = [place for place, letter in enumerate(unique) if letter not in known]
    if missing:
        found = b.unsqueeze(found, b.ints(missing))
    if len(unique) == len(term):
        return b.expand_like(_einsum_unbroadcast(found, operand, b), operand)
    return _on_diagonal(found, unique, term, operand, b)


def _einsum_unbroadcast(found: Value, operand: Value, b: GradientBuilder) -> Value:
    """Sum over dims that are 1 in the operand and were repeated."""
    have, want = b.known_shape(found), b.known_shape(operand)
    repeated = [axis for axis, (a, c) in enumerate(zip(have, want, strict=True)) if c == 1 and a != 1]
    result: Value = b.reduce_sum(found, b.ints(repeated), keepdims=1) if repeated else found
    return result


def _on_diagonal(found: Value, unique: list[str], term: list[str], operand: Value, b: GradientBuilder) -> Value:
    """A letter that a term names twice reads a diagonal: the adjoint of everything off it is zero."""
    free = [letter for letter in string.ascii_letters if letter not in term]
    factors, equation, result = [found], ["".join(unique)], list(term)
    first = {letter: term.index(letter) for letter in unique}
    for place, letter in enumerate(term):
        if place == first[letter]:
            continue
        renamed = free.pop()
        result[place] = renamed
        count = b.dim(operand, place)
        factors.append(b.eye_like(b.filled(b.concat(count, count, axis=0), operand)))
        equation.append(letter + renamed)
    found = b.expand(found, b.concat(*[b.dim(operand, first[letter]) for letter in unique], axis=0))
    adjoint: Value = b.einsum(found, *factors[1:], equation=f"{','.join(equation)}->{''.join(result)}")
    return adjoint
