"""Attributes that became inputs: axes of Squeeze, bounds of Slice, pads of Pad, ..."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....graph.core import AttributeReference
from ....graph.data import ArrayData
from ....graph.dtypes import DType, f32, i64
from .engine import step_down, step_up
from .node import CannotDowngrade, Facts, Node, constant, tensor_type

_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSumSquare",
)  # fmt: skip


@dataclass(frozen=True)
class Moved:
    """The attribute `name` became the input at `position`.

    `dtype` None means that of input 0. `shape` is () for a number, (1,) for a number stored as a vector, None for a
    list. `implied` is the attribute's old default where the input's absence means something else.
    """

    name: str
    position: int
    dtype: DType | None = i64
    shape: tuple[int, ...] | None = None
    implied: float | int | None = None

    def up(self, node: Node, facts: Facts, version: int) -> None:
        value = node.attributes.pop(self.name, self.implied)
        if value is None:
            return
        if isinstance(value, AttributeReference):
            # Inside a function body the value is only known at the call; the old form can stay as it is.
            node.attributes[self.name] = value
            node.keep_old(version)
            return
        dtype = self.dtype
        if dtype is None:
            data_type = tensor_type(facts, node.input(0))
            dtype = data_type.dtype if data_type is not None else f32
        array = np.array(value).astype(dtype.numpy)
        node.set_input(self.position, ArrayData(array if self.shape is None else array.reshape(self.shape), dtype))
        node.from_attribute[self.position] = self.name

    def down(self, node: Node, facts: Facts) -> None:
        value = node.input(self.position)
        if value is None:
            return
        array = constant(facts, value)
        if array is None:
            raise CannotDowngrade(
                f"its input {self.position} ({self.name}) is computed, an older opset wants a constant"
            )
        items = [item.item() for item in np.asarray(array).astype(np.float64 if self.is_real else np.int64).ravel()]
        node.attributes[self.name] = tuple(items) if self.shape is None else items[0]
        node.set_input(self.position, None)

    @property
    def is_real(self) -> bool:
        return self.dtype is None or self.dtype is f32


def _moved(version: int, op_types: tuple[str, ...], *moves: Moved) -> None:
    """Register both directions; going down, the last input leaves first so that positions stay valid."""

    @step_up(version, *op_types)
    def up(node: Node, facts: Facts) -> None:
        for move in moves:
            move.up(node, facts, version - 1)

    @step_down(version, *op_types)
    def down(node: Node, facts: Facts) -> None:
        for move in reversed(moves):
            move.down(node, facts)


_moved(13, ("Squeeze", "Unsqueeze", "ReduceSum"), Moved("axes", 1))
_moved(18, _REDUCTIONS, Moved("axes", 1))
_moved(10, ("Slice",), Moved("starts", 1), Moved("ends", 2), Moved("axes", 3))
_moved(5, ("Reshape",), Moved("shape", 1))
_moved(11, ("Pad",), Moved("pads", 1), Moved("value", 2, None, ()))
_moved(11, ("Clip",), Moved("min", 1, None, ()), Moved("max", 2, None, ()))
_moved(10, ("TopK",), Moved("k", 1, i64, (1,)))
_moved(13, ("Split",), Moved("split", 1))
_moved(12, ("Dropout",), Moved("ratio", 1, f32, ()))
_moved(9, ("Upsample",), Moved("scales", 1, f32))
# DFT-17's axis defaults to 1, DFT-20's input to -2.
_moved(20, ("DFT",), Moved("axis", 2, i64, (), implied=1))


@step_down(18, *_REDUCTIONS)
@step_down(13, "ReduceSum")
def _empty_axes(node: Node, facts: Facts) -> None:
    """An empty `axes` reduces everything unless `noop_with_empty_axes` says to reduce nothing; the attribute form
    has no such switch."""
    noop = node.attributes.pop("noop_with_empty_axes", 0)
    empty = not node.attributes.get("axes")
    if noop and empty:
        raise CannotDowngrade("noop_with_empty_axes with empty axes has no older form")
    if empty:
        node.attributes.pop("axes", None)


@step_up(18, "Split")
def _split_even_up(node: Node, facts: Facts) -> None:
    """Split-13 without sizes divides evenly by the number of outputs; Split-18 wants that number said."""
    if node.input(1) is None:
        node.attributes["num_outputs"] = node.output_count
        node.legacy["even"] = True


@step_down(18, "Split")
def _split_even_down(node: Node, facts: Facts) -> None:
    count = node.attributes.pop("num_outputs", None)
    if count is None or node.legacy.get("even"):
        return
    data = tensor_type(facts, node.input(0))
    axis = node.attributes.get("axis", 0)
    size = data.shape[axis] if data is not None and data.shape is not None else None
    if not isinstance(size, int):
        raise CannotDowngrade("the split dimension is not known, so that its division cannot be written as sizes")
    if size % count == 0:
        return
    chunk = -(-size // count)
    sizes = [chunk] * (count - 1) + [size - chunk * (count - 1)]
    node.set_input(1, ArrayData(np.array(sizes, np.int64)))


@step_down(2, "Split")
def _split_one(node: Node, facts: Facts) -> None:
    node.attributes.setdefault("axis", 0)


@step_up(2, "Pad")
def _pad_name_up(node: Node, facts: Facts) -> None:
    if "paddings" in node.attributes:
        node.attributes["pads"] = node.attributes.pop("paddings")


@step_down(2, "Pad")
def _pad_name_down(node: Node, facts: Facts) -> None:
    if "pads" in node.attributes:
        node.attributes["paddings"] = node.attributes.pop("pads")


@step_down(18, "Pad")
def _pad_axes(node: Node, facts: Facts) -> None:
    """Pad-18 can name the axes it pads; before, pads are given for all axes."""
    axes_input = node.input(3)
    if axes_input is None:
        return
    axes, pads = constant(facts, axes_input), constant(facts, node.input(1))
    data = tensor_type(facts, node.input(0))
    if axes is None or pads is None or data is None or data.rank is None:
        raise CannotDowngrade(
            "its axes or pads are computed, or its rank is unknown, so that full pads cannot be written"
        )
    full = np.zeros((2, data.rank), np.int64)
    full[:, axes.astype(np.int64)] = pads.reshape(2, -1)
    node.set_input(3, None)
    node.set_input(1, ArrayData(full.ravel()))


@step_down(11, "TopK")
def _topk_order(node: Node, facts: Facts) -> None:
    if not node.attributes.get("largest", 1):
        raise CannotDowngrade("TopK of the smallest elements does not exist before opset 11")
    node.attributes.pop("largest", None)
    node.attributes.pop("sorted", None)


@step_down(10, "Slice")
def _slice_steps(node: Node, facts: Facts) -> None:
    steps = node.input(4)
    if steps is None:
        return
    values = constant(facts, steps)
    if values is None or not bool((values == 1).all()):
        raise CannotDowngrade("Slice has no steps before opset 10")
    node.set_input(4, None)


@step_down(12, "Dropout")
def _dropout_training(node: Node, facts: Facts) -> None:
    training = node.input(2)
    if training is not None:
        value = constant(facts, training)
        if value is None or bool(value):
            raise CannotDowngrade("Dropout in training mode has no older form")
        node.set_input(2, None)
    node.attributes.pop("seed", None)
