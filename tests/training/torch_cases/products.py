"""Matrix products, Einsum, reductions, running sums, determinants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import Draw, case

MATRICES = [
    ((3, 4), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((3, 4), (2, 4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((4,), (2, 4, 5)),
    ((1, 1), (1, 1)),
    ((33, 17), (17, 65)),
]
for left, right in MATRICES:
    case(f"matmul {left} {right}", lambda b, x, y: b.matmul(x, y), lambda t, x, y: x @ y, x=left, y=right)

for across in [(0, 0), (0, 1), (1, 0), (1, 1)]:
    for bias in [(), (5,), (3, 1), (3, 5)]:
        case(
            f"gemm {across} {bias}",
            lambda b, x, y, c, a=across: b.gemm(x, y, c, alpha=0.5, beta=-1.5, transA=a[0], transB=a[1]),
            lambda t, x, y, c, a=across: 0.5 * ((x.T if a[0] else x) @ (y.T if a[1] else y)) - 1.5 * c,
            x=(4, 3) if across[0] else (3, 4),
            y=(5, 4) if across[1] else (4, 5),
            c=bias,
        )

EQUATIONS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("bij,bjk->bik", [(2, 2, 3), (2, 3, 4)]),
    ("...ij,...jk->...ik", [(2, 2, 3), (3, 4)]),
    ("ij->", [(2, 3)]),
    ("ij->j", [(2, 3)]),
    ("ij->ji", [(2, 3)]),
    ("ii->i", [(3, 3)]),
    ("ii", [(3, 3)]),
    ("ij,i,jk->k", [(2, 3), (2,), (3, 4)]),
    ("bhqd,bhkd->bhqk", [(1, 2, 3, 4), (1, 2, 2, 4)]),
    ("ij,ik->i", [(2, 3), (2, 4)]),
]
for equation, shapes in EQUATIONS:
    case(
        f"einsum {equation}",
        lambda b, equation=equation, **x: b.einsum(*x.values(), equation=equation),
        lambda t, equation=equation, **x: t.einsum(equation, *x.values()),
        **{f"x{index}": shape for index, shape in enumerate(shapes)},
    )

# ---- reductions ------------------------------------------------------------------------------------------------------


def _product(t: Any, x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


REDUCTIONS: dict[str, Any] = {
    "reduce_sum": lambda t, x, axes, keep: x.sum(axes, keepdim=keep),
    "reduce_mean": lambda t, x, axes, keep: x.mean(axes, keepdim=keep),
    "reduce_max": lambda t, x, axes, keep: x.amax(axes, keepdim=keep),
    "reduce_min": lambda t, x, axes, keep: x.amin(axes, keepdim=keep),
    "reduce_prod": _product,
    "reduce_l1": lambda t, x, axes, keep: t.linalg.vector_norm(x, 1, axes, keepdim=keep),
    "reduce_l2": lambda t, x, axes, keep: t.linalg.vector_norm(x, 2, axes, keepdim=keep),
    "reduce_log_sum": lambda t, x, axes, keep: x.sum(axes, keepdim=keep).log(),
    "reduce_log_sum_exp": lambda t, x, axes, keep: x.logsumexp(axes, keepdim=keep),
    "reduce_sum_square": lambda t, x, axes, keep: (x * x).sum(axes, keepdim=keep),
}
for name, function in REDUCTIONS.items():
    for axes, keep in [((1,), False), ((-1, 0), True), ((0, 1, 2), False), ((2,), True)]:
        case(
            f"{name} {axes} {keep}",
            lambda b, x, name=name, axes=axes, keep=keep: b.create(name, x, np.array(axes), keepdims=int(keep)),
            lambda t, x, function=function, axes=axes, keep=keep: function(t, x, axes, keep),
            x=Draw((2, 3, 4), low=0.5, high=1.5),
        )
TIES = np.array([[1.0, 3.0, 3.0, -2.0], [0.0, 0.0, 0.0, 0.0], [-1.0, -1.0, 2.0, 2.0]])
case("reduce_max of equals", lambda b, x: b.reduce_max(x, np.array([1])), lambda t, x: x.amax(1, keepdim=True), x=TIES)
case("reduce_min of equals", lambda b, x: b.reduce_min(x, np.array([0])), lambda t, x: x.amin(0, keepdim=True), x=TIES)
case(
    "reduce_prod of zeros",
    lambda b, x: b.reduce_prod(x, np.array([1])),
    lambda t, x: x.prod(1, keepdim=True),
    x=np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 3.0], [2.0, 3.0, 4.0]]),
)
case(
    "reduce_l2 of zeros",
    lambda b, x: b.reduce_l2(x, np.array([1])),
    lambda t, x: t.linalg.vector_norm(x, 2, 1, keepdim=True),
    x=TIES,
)
case(
    "reduce_l1 of zeros",
    lambda b, x: b.reduce_l1(x, np.array([1])),
    lambda t, x: t.linalg.vector_norm(x, 1, 1, keepdim=True),
    x=TIES,
)


def _running(t: Any, x: Any, how: dict[str, int], function: str, start: float) -> Any:
    """Along axis 1."""
    x = x.flip(1) if how.get("reverse") else x
    y = getattr(t, function)(x, 1)
    if how.get("exclusive"):
        y = t.cat([t.full_like(y[:, :1], start), y[:, :-1]], 1)
    return y.flip(1) if how.get("reverse") else y


for how in ({}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}):
    case(
        f"cumsum {how}",
        lambda b, x, how=how: b.cumsum(x, np.array(1), **how),
        lambda t, x, how=how: _running(t, x, how, "cumsum", 0.0),
        x=(2, 5, 3),
    )
    case(
        f"cumprod {how}",
        lambda b, x, how=how: b.cumprod(x, np.array(1), **how),
        lambda t, x, how=how: _running(t, x, how, "cumprod", 1.0),
        x=(2, 5),
    )
case(
    "cumprod of zeros",
    lambda b, x: b.cumprod(x, np.array(1)),
    lambda t, x: x.cumprod(1),
    x=np.array([[2.0, 0.0, 3.0, 1.5], [0.0, 4.0, 0.0, 1.0]]),
)
for size in (1, 2, 3, 4):
    case(f"det {size}", lambda b, x: b.det(x), lambda t, x: t.linalg.det(x), x=(2, size, size))
case(
    "root mean square",
    lambda b, x: b.div(b.reduce_l2(x, np.array([0, 1]), keepdims=0), np.float32(math.sqrt(12))),
    lambda t, x: (x * x).mean().sqrt(),
    x=(3, 4),
)
