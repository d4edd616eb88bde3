"""Products with little to share out but a long k: its parts are summed up apart, then added in order.

How many parts there are depends on the sizes alone, so any number of threads gives the same bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...graph.core import Operation, Value
from ...graph.kernel.bodies import cost, interpret, signature
from ...graph.kernel.kernel_base import epilogue_of
from ...graph.kernel.scalar_emitter import ScalarEmitter, computed_in
from ...graph.kernel.strided import Strided
from .kernels.gemm import UNITS, choose_tiling
from .plan_map import emit
from .planner import Planner, View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...graph.kernel.loop_builder import LoopBuilder
    from .plan_gemm import Product

# A part has as many steps at least, and a product that is split as many operations.
_LEAST_DEPTH = 512
_LEAST_OPERATIONS = 4e6
_MOST_PARTS = 8


def parts_of(planner: Planner, product: Product) -> int:
    """Into how many parts of equal depth k is split; 1 if it is not."""
    *batch, m, n = product.c.shape
    k = product.a.shape[-1]
    dtype = product.c.dtype
    if batch or not product.static or computed_in(dtype) is not dtype or 2.0 * m * n * k < _LEAST_OPERATIONS:
        return 1
    tiling = choose_tiling(planner.machine, dtype, m, n, k)
    units = -(-m // tiling.block) * -(-n // (tiling.columns * tiling.panels))
    wanted = min(_MOST_PARTS, UNITS // max(units, 1), k // _LEAST_DEPTH)
    return next((parts for parts in range(wanted, 1, -1) if k % parts == 0), 1)


def in_parts(product: Product, parts: int, partial: View) -> Product:
    """The stack of products of the parts of k, with results in `partial` [parts, m, n] and nothing done to them."""
    m, n = product.c.shape[-2:]
    depth = product.a.shape[-1] // parts
    a, b = product.a.layout, product.b.layout
    a_parts = Strided((parts, m, depth), (depth * a.strides[-1], *a.strides[-2:]), a.offset)
    b_parts = Strided((parts, depth, n), (depth * b.strides[-2], *b.strides[-2:]), b.offset)
    return replace(product, a=product.a.seen(a_parts), b=product.b.seen(b_parts), c=partial, extras=())


def add_parts(planner: Planner, op: Operation, product: Product, partial: View) -> None:
    """The result: the parts added in order, and what follows the product."""
    parts, m, n = partial.shape
    sources = [
        partial.seen(Strided((m, n), partial.strides[1:], partial.layout.offset + part * partial.strides[0]))
        for part in range(parts)
    ]
    block = epilogue_of(op)

    def body(b: LoopBuilder, values: Sequence[Value]) -> list[Value]:
        total = values[0]
        for value in values[1:parts]:
            total = b.add(total, value)
        return [total] if block is None else interpret(block, ScalarEmitter(b), [total, *values[parts:]])

    key = ("parts", parts, None if block is None else signature(block))
    operations = parts + (0 if block is None else cost(block))
    emit(planner, f"add_{parts}_parts", body, key, [*sources, *product.extras], [product.c], operations)
