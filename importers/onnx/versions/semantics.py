"""Operators whose meaning changed: the old meaning is kept under the old version where no new operator has it."""

from __future__ import annotations

from ....graph.dims import prove_equal
from ....graph.ops.legacy.normalization import only_axis
from .engine import step_down, step_up
from .node import CannotDowngrade, Facts, KeepOldForm, Node, rank, shape

_SOFTMAXES = ("Softmax", "LogSoftmax", "Hardmax")


@step_up(13, *_SOFTMAXES)
def _softmax_up(node: Node, facts: Facts) -> None:
    """Before opset 13 all dims from `axis` on are one; today only `axis` itself is normalized over."""
    if node.has_reference("axis"):
        raise KeepOldForm
    axis = node.attributes.get("axis", 1)
    single = only_axis(shape(facts, node.input(0)), axis)
    if axis != -1 and single is None:
        raise KeepOldForm
    if single is not None and (axis if axis >= 0 else axis + (rank(facts, node.input(0)) or 0)) != single:
        node.legacy["flat_axis"] = axis
        axis = single
    node.attributes["axis"] = axis


@step_down(13, *_SOFTMAXES)
def _softmax_down(node: Node, facts: Facts) -> None:
    if node.has_reference("axis"):
        raise CannotDowngrade(f"{node.op_type} flattens its input at the axis before opset 13")
    axis: int = node.attributes.get("axis", -1)
    written: int = node.legacy.get("flat_axis", axis)
    dims = shape(facts, node.input(0))
    wide = axis % len(dims) if dims else axis
    if axis != -1 or written != axis:
        usable = [start for start in (written, axis) if only_axis(dims, start) == wide]
        if not usable and axis != -1:
            raise CannotDowngrade(f"{node.op_type} over an axis that is not the last does not exist before opset 13")
        axis = usable[0] if usable else axis
    node.attributes["axis"] = axis


@step_up(14, "BatchNormalization")
def _batch_norm_up(node: Node, facts: Facts) -> None:
    """More than one output means training in BatchNormalization-9, whose outputs 4 and 5 are gone since."""
    if node.output_count > 1:
        raise KeepOldForm


@step_down(14, "BatchNormalization")
def _batch_norm_down(node: Node, facts: Facts) -> None:
    if node.attributes.get("training_mode", 0) or node.output_count > 1:
        raise CannotDowngrade("BatchNormalization in training mode has other outputs before opset 14")
    node.attributes.pop("training_mode", None)


@step_up(9, "BatchNormalization")
def _batch_norm_spatial_up(node: Node, facts: Facts) -> None:
    """`spatial=0` keeps statistics per position, not per channel; for [N, C] data both are the same."""
    if node.has_reference("spatial"):
        raise KeepOldForm
    spatial = node.attributes.pop("spatial", 1)
    if spatial == 0 and rank(facts, node.input(0)) != 2:
        raise KeepOldForm
    node.legacy["spatial"] = spatial


@step_down(9, "BatchNormalization")
def _batch_norm_spatial_down(node: Node, facts: Facts) -> None:
    spatial = node.legacy.get("spatial", 1)
    if spatial != 1 and (spatial != 0 or rank(facts, node.input(0)) == 2):
        node.attributes["spatial"] = spatial


@step_up(7, "BatchNormalization", "Dropout")
def _is_test_up(node: Node, facts: Facts) -> None:
    """Before opset 7 `is_test` says whether the node is used for inference. One output means inference also without
    it, as everywhere since; with more, BatchNormalization depends on it."""
    if node.op_type == "BatchNormalization" and node.output_count > 1:
        raise KeepOldForm
    node.legacy["is_test"] = node.attributes.pop("is_test", 0)


@step_down(7, "BatchNormalization", "Dropout")
def _is_test_down(node: Node, facts: Facts) -> None:
    node.attributes["is_test"] = node.legacy.get("is_test", 1)


@step_up(10, "Dropout")
def _dropout_mask_up(node: Node, facts: Facts) -> None:
    """The mask is boolean since opset 10, before it has the data's element type."""
    if node.output_count > 1:
        raise KeepOldForm


@step_down(10, "Dropout")
def _dropout_mask_down(node: Node, facts: Facts) -> None:
    if node.output_count > 1:
        raise CannotDowngrade("the mask of Dropout is not boolean before opset 10")


@step_up(22, "AveragePool", "MaxPool")
def _ceil_pool_up(node: Node, facts: Facts) -> None:
    node.legacy["ceil_mode"] = True


@step_down(22, "AveragePool", "MaxPool")
def _ceil_pool_down(node: Node, facts: Facts) -> None:
    """Since opset 22 a window that would start in the padding is left out; runtimes have always done so, but ONNX's
    own inference counts it before."""
    dims, sizes = shape(facts, node.input(0)), node.attributes.get("kernel_shape", ())
    plain = not node.has_reference("ceil_mode", "kernel_shape", "strides", "pads", "dilations")
    if "ceil_mode" in node.legacy or not node.attributes.get("ceil_mode", 0) or dims is None or not plain:
        return
    count = len(sizes)
    strides = node.attributes.get("strides", (1,) * count)
    pads = node.attributes.get("pads", (0,) * (2 * count))
    dilations = node.attributes.get("dilations", (1,) * count)
    for axis in range(count):
        size = dims[axis + 2]
        if isinstance(size, int):
            padded = size + pads[axis] + pads[axis + count]
            windows = -(-(padded - dilations[axis] * (sizes[axis] - 1) - 1) // strides[axis]) + 1
            if (windows - 1) * strides[axis] >= size + pads[axis]:
                raise CannotDowngrade(f"{node.op_type} has a window that starts in the padding, see opset 22")


@step_up(21, "GroupNormalization")
def _group_norm_up(node: Node, facts: Facts) -> None:
    """GroupNormalization-18 has one scale per group, -21 one per channel; equal if every channel is a group."""
    dims = shape(facts, node.input(0))
    if dims is None or len(dims) < 2 or node.attributes.get("num_groups") != dims[1]:
        raise KeepOldForm


@step_down(21, "GroupNormalization")
def _group_norm_down(node: Node, facts: Facts) -> None:
    dims = shape(facts, node.input(0))
    if dims is None or len(dims) < 2 or node.attributes.get("num_groups") != dims[1]:
        raise CannotDowngrade("GroupNormalization has one scale per group before opset 21")


@step_up(6, "Tile")
def _tile_up(node: Node, facts: Facts) -> None:
    """Tile-1 repeats one axis, given by two inputs."""
    raise KeepOldForm


@step_down(6, "Tile")
def _tile_down(node: Node, facts: Facts) -> None:
    raise CannotDowngrade("Tile repeats a single axis before opset 6")


@step_up(9, "Scan")
def _scan_up(node: Node, facts: Facts) -> None:
    """Scan-8 has a batch dimension and sequence lengths."""
    raise KeepOldForm


@step_down(9, "Scan")
def _scan_down(node: Node, facts: Facts) -> None:
    raise CannotDowngrade("Scan has a batch dimension before opset 9")


@step_up(2, "LpPool", "GlobalLpPool")
def _lp_pool_up(node: Node, facts: Facts) -> None:
    """`p` was a float; only whole numbers are left. A window without a size, which LpPool-1 allowed, means nothing."""
    power = node.attributes.get("p", 2.0)
    if node.op_type == "LpPool" and "kernel_shape" not in node.attributes:
        raise KeepOldForm
    if node.has_reference("p") or power != int(power):
        raise KeepOldForm
    node.attributes["p"] = int(power)


@step_down(2, "LpPool", "GlobalLpPool")
def _lp_pool_down(node: Node, facts: Facts) -> None:
    if node.has_reference("p"):
        raise CannotDowngrade(f"{node.op_type} takes its p as a float before opset 2")
    node.attributes["p"] = float(node.attributes.get("p", 2))


@step_up(16, "RoiAlign")
def _roi_align_up(node: Node, facts: Facts) -> None:
    """RoiAlign-10 does not shift coordinates by half a pixel."""
    node.attributes["coordinate_transformation_mode"] = "output_half_pixel"


@step_down(16, "RoiAlign")
def _roi_align_down(node: Node, facts: Facts) -> None:
    if node.attributes.pop("coordinate_transformation_mode", "half_pixel") != "output_half_pixel":
        raise CannotDowngrade("RoiAlign does not shift coordinates by half a pixel before opset 16")


@step_down(24, "Attention")
def _attention_mask_down(node: Node, facts: Facts) -> None:
    """Since opset 24 the mask may end before the last key; the keys beyond are masked out."""
    mask, keys, past = (shape(facts, node.input(index)) for index in (3, 1, 4))
    if not mask or not keys or mask[-1] == 1:
        return
    total = keys[-2] + (past[-2] if past else 0)
    if prove_equal(mask[-1], total) is False:
        raise CannotDowngrade("the mask of Attention covers all keys before opset 24")
