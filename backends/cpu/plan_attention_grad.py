"""Planning the adjoints of attention."""

from __future__ import annotations

from ...graph.core import Operation
from .kernels.attention import Attention
from .kernels.attention_grad import (
    AttentionGrad,
    build_attention_grad,
    grad_arguments,
    grad_buffers,
    grad_scratch,
    grad_units,
)
from .planner import Argument, Buffer, Planner, View, plans

_DIMS = ("batch", "head", "row", "element")


@plans("kernel.attention_grad")
def plan_attention_grad(planner: Planner, op: Operation) -> None:
    """The results lie as [batch, length, heads, size], which is how heads are put together again."""
    q, k, v, grad = (_with_rows(planner, planner.view(value)) for value in op.operand_values[:4])
    dq, dk, dv = (planner.new(result, (0, 2, 1, 3)) for result in op.results)
    given_mask = op.input(4)
    mask = None if given_mask is None else planner.view(given_mask).broadcast((*q.shape[:3], k.shape[2]))
    static = all(planner.is_static(value) for value in op.operand_values)

    def size(number: int) -> int | None:
        return number if static else None

    def strides(view: View) -> tuple[int | None, int | None, int | None, int | None]:
        batch, head, row, element = view.strides
        return size(batch), size(head), size(row) if static or row else 0, int(element)

    forward = Attention(
        dtype=dq.dtype, size=int(q.shape[3]), value_size=int(v.shape[3]), queries=size(q.shape[2]),
        keys=size(k.shape[2]), heads=size(q.shape[1]), q=strides(q), k=strides(k), v=strides(v), y=strides(grad),
        repeats=int(q.shape[1]) // int(k.shape[1]), scale=float(op.attr("scale")), softcap=float(op.attr("softcap")),
        causal=bool(op.attr("causal")), mask=None if mask is None else mask.dtype,
        mask_strides=(0, 0, 0, 0) if mask is None else strides(mask), masked_score=float(op.attr("masked_score")),
        masking=str(op.attr("masking")),
    )  # fmt: skip
    kernel = AttentionGrad(forward, strides(dq)[:3], strides(dk)[:3], strides(dv)[:3])
    name, machine = f"attention_grad_{forward.size}", planner.machine
    compiled = planner.library.get(
        ("attention_grad", kernel), lambda name: build_attention_grad(name, kernel, machine), name
    )
    views = {"y": grad, "q": q, "k": k, "v": v, "dq": dq, "dk": dk, "dv": dv} | ({} if mask is None else {"mask": mask})
    given: dict[str, Argument] = {
        "queries": q.shape[2], "keys": k.shape[2], "heads": q.shape[1], "scratch": Buffer(None)
    }  # fmt: skip
    for buffer, view in views.items():
        given[buffer] = planner.buffer(view)
        given |= {f"{buffer}_{dim}": n for dim, n in zip(_DIMS, view.strides, strict=True)}
    scratch = grad_scratch(kernel, machine) * grad_buffers(kernel)["scratch"].numpy.itemsize
    work = 10.0 * q.layout.size * k.shape[2]
    planner.call(compiled, grad_arguments(kernel), given, grad_units(k.shape[0], k.shape[1]), work, scratch)


def _with_rows(planner: Planner, view: View) -> View:
    """The view, or a copy in which the elements of a row lie next to each other."""
    return view if view.strides[3] == 1 or view.shape[3] == 1 else planner.copied(view)
