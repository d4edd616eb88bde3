"""Planning attention."""

from __future__ import annotations

from collections.abc import Sequence

from ...graph.core import Operation
from .kernels.attention import (
    Attention,
    attention_arguments,
    attention_buffers,
    attention_scratch,
    attention_sizes,
    attention_units,
    build_attention,
)
from .kernels.strided import zero_or_one
from .planner import Argument, Buffer, Planner, View, plans


@plans("kernel.attention")
def plan_attention(planner: Planner, op: Operation) -> None:
    """The result lies as [batch, queries, heads, size], which is how the heads are put together again."""
    q, k, v = (planner.view(value) for value in op.operand_values[:3])
    y = planner.new(op.result, (0, 2, 1, 3))
    given_mask = op.input(3)
    mask = None if given_mask is None else planner.view(given_mask).broadcast((*q.shape[:3], k.shape[2]))
    static = all(planner.is_static(value) for value in op.operand_values)

    def size(number: int) -> int | None:
        return number if static else None

    def strides(view: View) -> tuple[int | None, int | None, int | None, int | None]:
        batch, head, row, element = view.strides
        # A stride of 0 or 1 along a row decides how it is read, so that is part of the kernel.
        return size(batch), size(head), size(row), element if static else zero_or_one(element)

    extents = {"queries": q.shape[2], "keys": k.shape[2], "heads": q.shape[1], "offset": int(op.attr("offset"))}
    kernel = Attention(
        dtype=y.dtype, size=q.shape[3], value_size=v.shape[3], queries=size(q.shape[2]), keys=size(k.shape[2]),
        heads=size(q.shape[1]), q=strides(q), k=strides(k), v=strides(v), y=strides(y),
        repeats=q.shape[1] // k.shape[1], scale=float(op.attr("scale")), softcap=float(op.attr("softcap")),
        causal=bool(op.attr("causal")), offset=int(op.attr("offset")), mask=None if mask is None else mask.dtype,
        mask_strides=(0, 0, 0, 0) if mask is None else strides(mask), masked_score=float(op.attr("masked_score")),
        masking=str(op.attr("masking")),
    )  # fmt: skip
    name = f"attention_{q.shape[3]}"
    machine = planner.machine
    compiled = planner.library.get(("attention", kernel), lambda name: build_attention(name, kernel, machine), name)
    views = {"y": y, "q": q, "k": k, "v": v, **({} if mask is None else {"mask": mask})}
    given: dict[str, Argument] = {**extents, "scratch": Buffer(None)}
    for buffer, view in views.items():
        given[buffer] = planner.buffer(view)
        given |= {f"{buffer}_{dim}": n for dim, n in zip(_dims(kernel, buffer), view.strides, strict=True)}
    units = attention_units(kernel, machine, q.shape[0], q.shape[1], q.shape[2]) if y.layout.size else 0
    scratch = attention_scratch(kernel, machine) * attention_buffers(kernel)["scratch"].numpy.itemsize
    work = 4.0 * q.layout.size * k.shape[2]
    planner.call(compiled, attention_arguments(kernel), given, units, work, scratch)


def _dims(kernel: Attention, buffer: str) -> Sequence[str]:
    names = [name for name in attention_sizes(kernel) if name.startswith(f"{buffer}_")]
    return [name.removeprefix(f"{buffer}_") for name in names]
