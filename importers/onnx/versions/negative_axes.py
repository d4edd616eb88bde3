"""Negative axes and indices, which many operators take only since opset 11.

Files of older opsets have them all the same, and runtimes accept them: what the file has comes back as it was.
"""

from __future__ import annotations

import numpy as np

from ....graph.data import ArrayData
from .engine import step_down, step_up
from .node import CannotDowngrade, Facts, Node, constant, rank, shape, tensor_type

_SINGLE = ("ArgMax", "ArgMin", "Compress", "Concat", "Flatten", "Hardmax", "LogSoftmax", "Softmax", "Split")
_LISTS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare", "Squeeze", "Unsqueeze",
)  # fmt: skip


def _full_rank(node: Node, facts: Facts) -> int:
    size = rank(facts, node.input(0))
    if size is None:
        raise CannotDowngrade(f"{node.op_type} takes no negative axis before opset 11, and its rank is unknown")
    return size + len(node.attributes["axes"]) if node.op_type == "Unsqueeze" else size


@step_up(11, *_SINGLE, *_LISTS)
def _attribute_up(node: Node, facts: Facts) -> None:
    if _negative(node):
        node.legacy["negative_axis"] = True


@step_down(11, *_SINGLE)
def _axis_down(node: Node, facts: Facts) -> None:
    if _negative(node) and "negative_axis" not in node.legacy:
        node.attributes["axis"] += _full_rank(node, facts)


@step_down(11, *_LISTS)
def _axes_down(node: Node, facts: Facts) -> None:
    if _negative(node) and "negative_axis" not in node.legacy:
        node.attributes["axes"] = tuple(axis % _full_rank(node, facts) for axis in node.attributes["axes"])


def _negative(node: Node) -> bool:
    axis, axes = node.attributes.get("axis", 0), node.attributes.get("axes", ())
    if node.has_reference("axis", "axes"):
        return False
    return axis < 0 or any(item < 0 for item in axes)


@step_down(11, "TopK", "OneHot")
def _last_axis(node: Node, facts: Facts) -> None:
    """-1 means the last axis at all opsets here; other negative axes are newer."""
    axis = node.attributes.get("axis", -1)
    if isinstance(axis, int) and axis < -1:
        node.attributes["axis"] = axis + _full_rank(node, facts) + (node.op_type == "OneHot")


@step_up(11, "Slice")
def _slice_up(node: Node, facts: Facts) -> None:
    axes = constant(facts, node.input(3))
    if axes is not None and bool((axes < 0).any()):
        node.legacy["negative_axis"] = True


@step_down(11, "Slice")
def _slice_down(node: Node, facts: Facts) -> None:
    axes = constant(facts, node.input(3))
    if axes is None or not bool((axes < 0).any()) or "negative_axis" in node.legacy:
        return
    size, found = _full_rank(node, facts), tensor_type(facts, node.input(3))
    node.set_input(3, ArrayData(np.where(axes < 0, axes + size, axes), found.dtype if found else None))


@step_up(11, "Gather")
def _gather_up(node: Node, facts: Facts) -> None:
    indices = constant(facts, node.input(1))
    if indices is not None and bool((indices < 0).any()):
        node.legacy["negative_index"] = True


@step_down(11, "Gather")
def _gather_down(node: Node, facts: Facts) -> None:
    """Gather-1 has no negative indices. Computed ones are taken to be in range, as an older file would have them."""
    indices, found = constant(facts, node.input(1)), tensor_type(facts, node.input(1))
    if indices is None or not bool((indices < 0).any()) or "negative_index" in node.legacy:
        return
    dims, axis = shape(facts, node.input(0)), node.attributes.get("axis", 0)
    size = dims[axis] if dims is not None and isinstance(axis, int) else None
    if not isinstance(size, int):
        raise CannotDowngrade("Gather has no negative indices before opset 11, and the dimension is unknown")
    node.set_input(1, ArrayData(np.where(indices < 0, indices + size, indices), found.dtype if found else None))
