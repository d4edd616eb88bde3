"""Attributes that became inputs: axes of Squeeze, bounds of Slice, pads of Pad, ... (table: graph/ops/legacy/moved)."""

from __future__ import annotations

import numpy as np

from ....graph.data import ArrayData
from ....graph.ops.legacy.moved import MOVED, Moved
from .engine import step_down, step_up
from .node import CannotDowngrade, Facts, KeepOldForm, Node, constant, rank, shape, tensor_type

_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSumSquare",
)  # fmt: skip


@step_up(12, "Dropout")
def _dropout_mask(node: Node, facts: Facts) -> None:
    if node.output_count > 1:
        node.legacy["mask"] = True


@step_down(12, "Dropout")
def _inference_dropout(node: Node, facts: Facts) -> None:
    """Dropout-12 that does not train ignores its ratio and seed; the older forms cannot ask for training.

    Registered before the general step, which could not write a ratio that is computed.
    """
    if node.output_count > 1 and "mask" not in node.legacy:
        raise CannotDowngrade("the mask of a Dropout that does not train is not defined before opset 12")
    training = node.input(2)
    if training is not None:
        value = constant(facts, training)
        if value is None or bool(value):
            raise CannotDowngrade("Dropout in training mode has no older form")
        node.set_input(2, None)
    node.attributes.pop("seed", None)
    if constant(facts, node.input(1)) is None:
        node.set_input(1, None)


@step_down(20, "DFT")
def _dft_axis(node: Node, facts: Facts) -> None:
    """Registered before the general step, which leaves the axis to DFT-17's default, 1."""
    if node.input(2) is None:
        node.attributes["axis"] = -2


def _move_up(node: Node, facts: Facts, move: Moved) -> None:
    if node.has_reference(move.name):
        # Inside a function body the value is only known at the call.
        raise KeepOldForm
    written = node.attributes.pop(move.name, None)
    value = move.implied if written is None else written
    if value is None and node.op_type == "Reshape":
        raise KeepOldForm  # Reshape-1 without a shape is allowed, but means nothing
    if value is None:
        return
    data_type = tensor_type(facts, node.input(0))
    data = move.data(value, data_type.dtype if data_type is not None else None)
    if data is None:
        raise KeepOldForm
    node.set_input(move.position, data)
    node.from_attribute[move.position] = move.name
    if written is not None and _attribute(move, data.numpy()) != written:
        # Rounded to the data's element type, or an empty list: the constant does not tell what was written.
        node.legacy[move.name] = written


def _move_down(node: Node, facts: Facts, move: Moved) -> None:
    value = node.input(move.position)
    if value is None:
        return
    array = constant(facts, value)
    if array is None:
        raise CannotDowngrade(f"its input {move.position} ({move.name}) is computed, an older opset wants a constant")
    written = node.legacy.get(move.name)
    found = tensor_type(facts, value)
    same = move.data(written, found.dtype if found is not None else None) if written is not None else None
    restored = same is not None and np.array_equal(same.numpy(), array)
    node.attributes[move.name] = written if restored else _attribute(move, array)
    node.set_input(move.position, None)


def _attribute(move: Moved, array: np.ndarray) -> tuple[float, ...] | float:
    """The constant as an attribute. Its elements are floats where the input's type is that of the data."""
    wide = np.asarray(array).astype(np.float64 if move.dtype is None or move.dtype.is_float else np.int64)
    items = wide.ravel().tolist()
    result: tuple[float, ...] | float = tuple(items) if move.shape is None else items[0]
    return result


def _register_moves() -> None:
    """Both directions; going down, the last input leaves first so that positions stay valid."""
    for group in MOVED:

        @step_up(group.at, *group.op_types)
        def up(node: Node, facts: Facts, moves: tuple[Moved, ...] = group.moves) -> None:
            for move in moves:
                _move_up(node, facts, move)

        @step_down(group.at, *group.op_types)
        def down(node: Node, facts: Facts, moves: tuple[Moved, ...] = group.moves) -> None:
            for move in reversed(moves):
                _move_down(node, facts, move)


@step_down(18, "Pad")
def _pad_axes(node: Node, facts: Facts) -> None:
    """Pad-18 can name the axes it pads; before, pads are given for all axes."""
    axes_input = node.input(3)
    if axes_input is None:
        return
    axes, pads = constant(facts, axes_input), constant(facts, node.input(1))
    size = rank(facts, node.input(0))
    if axes is None or pads is None or size is None:
        raise CannotDowngrade(
            "its axes or pads are computed, or its rank is unknown, so that full pads cannot be written"
        )
    full = np.zeros((2, size), np.int64)
    full[:, axes.astype(np.int64)] = pads.reshape(2, -1)
    node.set_input(3, None)
    node.set_input(1, ArrayData(full.ravel()))


@step_up(18, "Split")
def _split_even_up(node: Node, facts: Facts) -> None:
    """Split-13 without sizes divides evenly by the number of outputs; Split-18 wants that number said."""
    if node.input(1) is None:
        node.attributes["num_outputs"] = node.output_count
        node.legacy["even"] = node.output_count


@step_down(18, "Split")
def _split_even_down(node: Node, facts: Facts) -> None:
    """Split-18 may leave a smaller rest to its last output; before, that must be written as sizes."""
    count = node.attributes.get("num_outputs")
    if count is None or node.has_reference("num_outputs"):
        return
    del node.attributes["num_outputs"]
    if node.legacy.get("even") == count:
        return
    dims, axis = shape(facts, node.input(0)), node.attributes.get("axis", 0)
    size = dims[axis] if dims is not None and isinstance(axis, int) else None
    if not isinstance(size, int):
        raise CannotDowngrade("the split dimension is not known, so that its division cannot be written as sizes")
    chunk = -(-size // count)
    rest = size - chunk * (count - 1)
    if rest < 0:
        raise CannotDowngrade(f"{size} elements do not divide into {count} parts")
    if rest != chunk:
        node.set_input(1, ArrayData(np.array([chunk] * (count - 1) + [rest], np.int64)))


# After the steps of the same versions above: these go down from opset 18 and then 13.
_register_moves()


@step_down(18, *_REDUCTIONS)
@step_down(13, "ReduceSum")
def _empty_axes(node: Node, facts: Facts) -> None:
    """An empty `axes` reduces everything unless `noop_with_empty_axes` says to reduce nothing; the attribute form
    has no such switch, and implementations differ on an empty list."""
    noop = node.attributes.pop("noop_with_empty_axes", 0)
    if node.attributes.get("axes"):
        return
    if noop:
        raise CannotDowngrade("noop_with_empty_axes with empty axes has no older form")
    if "axes" not in node.legacy:
        node.attributes.pop("axes", None)


@step_up(2, "Split")
def _split_input(node: Node, facts: Facts) -> None:
    """Split-1 takes its sizes as an input of the data's element type, or as an attribute; Split-2 as an attribute."""
    if node.input(1) is not None:
        raise KeepOldForm
    node.imply("axis", 0)


@step_down(2, "Split")
def _split_axis(node: Node, facts: Facts) -> None:
    """Split-1's axis has no default; 0 is meant where a file left it out."""
    node.attributes.setdefault("axis", 0)
    node.forget("axis", 0)


@step_up(2, "Pad")
def _pad_name_up(node: Node, facts: Facts) -> None:
    if "paddings" in node.attributes:
        node.attributes["pads"] = node.attributes.pop("paddings")


@step_down(2, "Pad")
def _pad_name_down(node: Node, facts: Facts) -> None:
    if "pads" in node.attributes:
        node.attributes["paddings"] = node.attributes.pop("pads")


@step_down(10, "Slice")
def _slice_steps(node: Node, facts: Facts) -> None:
    """Registered after the general step, but about the input behind those that it moves."""
    steps = node.input(4)
    if steps is None:
        return
    values = constant(facts, steps)
    if values is None or not bool((values == 1).all()):
        raise CannotDowngrade("Slice has no steps before opset 10")
    node.set_input(4, None)
