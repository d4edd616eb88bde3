"""Newton's method whose linear system is solved by conjugate gradients: it needs products with the Hessian only.

Nocedal and Wright 2006, algorithm 7.1, without the line search. The product H v is derived as a graph (the gradient of
the gradient's product with v); the part of it that depends on v becomes the body of an ONNX Loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph.clone import ValueMap, clone_operations
from ...graph.core import Operation, Value
from ...graph.dtypes import bool_
from ...graph.evaluator import captures
from .optimizers import Moment, Optimizer, Parameter
from .schedules import Schedule

if TYPE_CHECKING:
    from ...graph.model_builder import Tensor
    from .derivation import Derivation
    from .step_builder import StepBuilder


@dataclass(frozen=True)
class NewtonCG(Optimizer):
    """w + learning_rate * s, where s solves (H + damping) s = -g up to `iterations` steps of conjugate gradients.

    They end early where the residual is below `tolerance` times the first, or where the curvature along a direction is
    not positive: s is then what was found so far, at first -g.
    """

    is_elementwise = False

    learning_rate: float | Schedule = 1.0
    iterations: int = 10
    damping: float = field(default=1e-4, kw_only=True)
    tolerance: float = field(default=1e-4, kw_only=True)

    def update(self, at: Moment, parameters: Sequence[Parameter]) -> list[tuple[Tensor, dict[str, Tensor]]]:
        b = at.b
        pairs = [self._decayed(at, each) for each in parameters]
        decays = [self.weight_decay if self._decays(each) and not self.decoupled else 0.0 for each in parameters]
        product = HessianProduct(b, at.derivation, [each.value.value for each in parameters], at.raw_grads)
        steps = self._solve(b, product, [grad for _, grad in pairs], [self.damping + decay for decay in decays])
        product.erase()
        return [
            (value + step * b.like(at.learning_rate, value), {}) for (value, _), step in zip(pairs, steps, strict=True)
        ]

    def _solve(
        self, b: StepBuilder, product: HessianProduct, grads: list[Tensor], damping: list[float]
    ) -> list[Tensor]:
        count = len(grads)
        start = [-grad for grad in grads]
        zeros = [grad * 0.0 for grad in grads]
        first = b.sum_of_squares(grads)
        enough = first * self.tolerance**2

        def iterate(iteration: Tensor, condition: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            solution, residual = list(state[:count]), list(state[count : 2 * count])
            along, square = list(state[2 * count : 3 * count]), state[-1]
            bent = [h + d * c for h, d, c in zip(product.build(along), along, damping, strict=True)]
            curvature = _dot(b, along, bent)
            zero = b.like(0.0, square)
            convex = curvature > zero
            length = b.where(convex, square / curvature, zero)
            # Without curvature at the very start: the direction of steepest descent.
            to_add = b.where(b.or_(convex, b.cast(iteration, to=bool_)), length, b.like(1.0, square))
            solution = [s + d * b.like(to_add, s) for s, d in zip(solution, along, strict=True)]
            residual = [r - h * b.like(length, r) for r, h in zip(residual, bent, strict=True)]
            new = b.sum_of_squares(residual)
            ratio = b.where(square > zero, new / square, zero)
            along = [r + d * b.like(ratio, r) for r, d in zip(residual, along, strict=True)]
            return (b.and_(convex, new > enough), *solution, *residual, *along, new)

        initial = [*zeros, *start, *start, first]
        found = b.loop(np.array(self.iterations, np.int64), initial, iterate, first > b.like(0.0, first))
        return list(found[:count])


def _dot(b: StepBuilder, left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    total: Any = None
    for x, y in zip(left, right, strict=True):
        term = b.reduce_sum(x * y, keepdims=0)
        total = term if total is None else total + b.like(term, total)
    found: Tensor = total
    return found


class HessianProduct:
    """The operations that make H v of v, derived once and copied to where `build` is called."""

    def __init__(self, b: StepBuilder, at: Derivation, variables: list[Value], grads: Sequence[Value]) -> None:
        self.b, self.block = b, at.block
        self.vectors = [self.block._add_argument(value.type) for value in variables]
        builder = at.sweep().builder
        # A value may be the gradient of two tensors, and then has two vectors.
        apart = [builder.identity(value) for value in grads]
        seeds = dict(zip(apart, self.vectors, strict=True))
        self.results = at.or_zeros(at.adjoints(seeds, variables), variables)
        self.path = self._dependent()

    def _dependent(self) -> list[Operation]:
        reached: set[Value] = set(self.vectors)
        path = []
        for op in self.block:
            read = [*op.operand_values, *(captures(op) if op.regions else ())]
            if not op.is_terminator and any(value in reached for value in read):
                reached.update(op.results)
                path.append(op)
        needed, kept = set(self.results), []
        for op in reversed(path):
            if any(result in needed for result in op.results):
                needed.update([*op.operand_values, *(captures(op) if op.regions else ())])
                kept.append(op)
        return kept[::-1]

    def build(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        values: ValueMap = {old: new.value for old, new in zip(self.vectors, vectors, strict=True)}
        place = self.b._here
        for op in clone_operations(self.path, values):
            place.insert(op)
        return [self.b.tensor(values.get(result, result)) for result in self.results]

    def erase(self) -> None:
        """Take the original away: only its copies run."""
        reached: set[Value] = set(self.vectors)
        dependent = []
        for op in self.block:
            if any(value in reached for value in [*op.operand_values, *(captures(op) if op.regions else ())]):
                reached.update(op.results)
                dependent.append(op)
        for op in reversed(dependent):
            op._erase()
        for vector in reversed(self.vectors):
            self.block._remove_argument(vector.index)
