"""Planning products with few rows or few columns whose factors both run along k in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...graph.core import Operation
from ...graph.kernel.bodies import signature
from ...graph.kernel.kernel_base import epilogue_of
from .kernels.dot import FEW, Dot, build_dot, dot_arguments, dot_lanes, dot_units
from .kernels.elementwise import collapse
from .kernels.strided import zero_or_one
from .kernels.tile import Epilogue, EpilogueOperand
from .planner import Argument, Planner, View

if TYPE_CHECKING:
    from .plan_gemm import Product


def dots(product: Product) -> bool:
    """Whether the product is one for `plan_dot`. A packed weight is read as well in panels, if it has many columns."""
    m, n = product.c.shape[-2:]
    along_k = (product.a.strides[-1] == 1 or product.a.shape[-1] == 1) and (
        product.b.strides[-2] == 1 or product.a.shape[-1] == 1
    )
    return along_k and (n <= FEW or (m <= FEW and product.weight is None))


def plan_dot(planner: Planner, op: Operation, product: Product, epilogue: Epilogue) -> None:
    """Call the product; `epilogue` has a body, and its operands' names in order."""
    # As matrices [rows, k] and [few, k], and results [rows, few].
    x, y, results = product.a, _turned(product.b), [product.c, *product.extras]
    if product.c.shape[-1] > FEW:
        x, y, results = y, x, [_turned(view) for view in results]
    c, *extras = results
    rows, few = c.shape[-2], int(c.shape[-1])
    space = collapse(c.shape[:-2], [view.strides[:-2] for view in (x, y, c, *extras)])
    operands = tuple(
        EpilogueOperand(operand.name, view.dtype, zero_or_one(view.strides[-2]), 1)
        for operand, view in zip(epilogue.operands, extras, strict=True)
    )
    epilogue = Epilogue(operands, epilogue.body)
    dot = Dot(
        None, None, few, c.dtype, None, None, 1 if c.strides[-2] == 1 else None, None, space.extents != (1,), epilogue
    )  # fmt: skip
    block = epilogue_of(op)
    key = ("dot", replace(dot, epilogue=Epilogue(operands)), None if block is None else signature(block))
    machine = planner.machine
    kernel = planner.library.get(key, lambda name: build_dot(name, dot, machine), f"dot_{few}")
    given: dict[str, Argument] = {
        "rows": rows, "k": x.shape[-1], "x_row": x.strides[-2], "y_row": y.strides[-2], "c_row": c.strides[-2],
        "c_few": c.strides[-1],
    }  # fmt: skip
    names, views = ["x", "y", "c", *(operand.name for operand in operands)], (x, y, c, *extras)
    for name, view, strides in zip(names, views, space.strides, strict=True):
        given[f"{name}_batch"] = strides[-1]
        if name not in ("x", "y", "c"):
            given[f"{name}_row"], given[f"{name}_few"] = view.strides[-2], view.strides[-1]
    units = dot_units(rows, dot_lanes(dot, machine), space.extents[-1]) if c.layout.size else 0
    operations = 2.0 * rows * few * max(x.shape[-1], 1) * space.extents[-1]
    for position in np.ndindex(*space.extents[:-1]):
        for name, view, strides in zip(names, views, space.strides, strict=True):
            offset = sum(p * s for p, s in zip(position, strides[:-1], strict=True))
            given[name] = planner.buffer(view, offset)
        planner.call(kernel, dot_arguments(dot), given, units, operations)


def _turned(view: View) -> View:
    """The transposed matrices."""
    rank = view.layout.rank
    return view.seen(view.layout.transposed((*range(rank - 2), rank - 1, rank - 2)))
