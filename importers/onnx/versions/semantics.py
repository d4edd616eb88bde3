"""Operators whose meaning changed: the old meaning is kept under the old version where no new operator has it."""

from __future__ import annotations

from .engine import step_down, step_up
from .node import CannotDowngrade, Facts, Node, rank, tensor_type

_SOFTMAXES = ("Softmax", "LogSoftmax", "Hardmax")


@step_up(13, *_SOFTMAXES)
def _softmax_up(node: Node, facts: Facts) -> None:
    """Before opset 13 all dims from `axis` on are one; today only `axis` itself is normalized over."""
    axis = node.attributes.get("axis", 1)
    size = rank(facts, node.input(0))
    if not isinstance(axis, int) or (axis != -1 and (size is None or axis != size - 1)):
        node.keep_old(11)
        return
    node.attributes["axis"] = axis


@step_down(13, *_SOFTMAXES)
def _softmax_down(node: Node, facts: Facts) -> None:
    axis = node.attributes.get("axis", -1)
    size = rank(facts, node.input(0))
    if axis != -1 and (size is None or axis not in (size - 1, -1)):
        raise CannotDowngrade(f"{node.op_type} over an axis that is not the last does not exist before opset 13")
    node.attributes["axis"] = axis


@step_down(11, *_SOFTMAXES)
def _softmax_positive_axis(node: Node, facts: Facts) -> None:
    axis = node.attributes["axis"]
    if axis < 0:
        size = rank(facts, node.input(0))
        if size is None:
            raise CannotDowngrade(f"{node.op_type} takes no negative axis before opset 11, and its rank is unknown")
        node.attributes["axis"] = axis + size


@step_up(14, "BatchNormalization")
def _batch_norm_up(node: Node, facts: Facts) -> None:
    """More than one output means training in BatchNormalization-9, whose outputs 4 and 5 are gone since."""
    if node.output_count > 1:
        node.keep_old(9)


@step_down(14, "BatchNormalization")
def _batch_norm_down(node: Node, facts: Facts) -> None:
    if node.attributes.get("training_mode", 0) or node.output_count > 1:
        raise CannotDowngrade("BatchNormalization in training mode has other outputs before opset 14")
    node.attributes.pop("training_mode", None)


@step_up(9, "BatchNormalization")
def _batch_norm_spatial_up(node: Node, facts: Facts) -> None:
    """`spatial=0` keeps statistics per position, not per channel; for [N, C] data both are the same."""
    spatial = node.attributes.pop("spatial", 1)
    if spatial == 0 and rank(facts, node.input(0)) != 2:
        node.keep_old(7)
        return
    node.legacy["spatial"] = spatial


@step_down(9, "BatchNormalization")
def _batch_norm_spatial_down(node: Node, facts: Facts) -> None:
    if node.legacy.get("spatial", 1) != 1:
        node.attributes["spatial"] = node.legacy["spatial"]


@step_up(7, "BatchNormalization", "Dropout")
def _is_test_up(node: Node, facts: Facts) -> None:
    """Before opset 7 `is_test` says whether the node is used for inference; the number of outputs decides as well."""
    node.legacy["is_test"] = node.attributes.pop("is_test", 0)


@step_down(7, "BatchNormalization", "Dropout")
def _is_test_down(node: Node, facts: Facts) -> None:
    node.attributes["is_test"] = node.legacy.get("is_test", 1)


@step_up(21, "GroupNormalization")
def _group_norm_up(node: Node, facts: Facts) -> None:
    """GroupNormalization-18 has one scale per group, -21 one per channel; equal if every channel is a group."""
    scale, data = tensor_type(facts, node.input(1)), tensor_type(facts, node.input(0))
    groups = node.attributes.get("num_groups")
    channels = data.shape[1] if data is not None and data.shape is not None and len(data.shape) > 1 else None
    if scale is None or not isinstance(groups, int) or groups != channels:
        node.keep_old(18)


@step_down(21, "GroupNormalization")
def _group_norm_down(node: Node, facts: Facts) -> None:
    data = tensor_type(facts, node.input(0))
    channels = data.shape[1] if data is not None and data.shape is not None else None
    if node.attributes.get("num_groups") != channels:
        raise CannotDowngrade("GroupNormalization has one scale per group before opset 21")
    if node.attributes.pop("stash_type", 1) != 1:
        raise CannotDowngrade("GroupNormalization has no stash_type before opset 21")


@step_up(6, "Tile")
def _tile_up(node: Node, facts: Facts) -> None:
    """Tile-1 repeats one axis, given by two inputs."""
    node.keep_old(1)


@step_down(6, "Tile")
def _tile_down(node: Node, facts: Facts) -> None:
    raise CannotDowngrade("Tile repeats a single axis before opset 6")


@step_up(9, "Scan")
def _scan_up(node: Node, facts: Facts) -> None:
    """Scan-8 has a batch dimension and sequence lengths."""
    node.keep_old(8)


@step_down(9, "Scan")
def _scan_down(node: Node, facts: Facts) -> None:
    raise CannotDowngrade("Scan has a batch dimension before opset 9")


@step_up(2, "LpPool", "GlobalLpPool")
def _lp_pool_up(node: Node, facts: Facts) -> None:
    """`p` was a float; only whole numbers are left."""
    power = node.attributes.get("p", 2.0)
    if not isinstance(power, float | int) or power != int(power) or "kernel_shape" not in node.attributes:
        if node.op_type == "LpPool" or not isinstance(power, float | int) or power != int(power):
            node.keep_old(1)
            return
    node.attributes["p"] = int(power)


@step_down(2, "LpPool", "GlobalLpPool")
def _lp_pool_down(node: Node, facts: Facts) -> None:
    node.attributes["p"] = float(node.attributes.get("p", 2))


@step_up(6, "Selu")
def _selu_up(node: Node, facts: Facts) -> None:
    """Selu-1's defaults have fewer digits."""
    node.attributes.setdefault("alpha", 1.673200011253357)
    node.attributes.setdefault("gamma", 1.0506999492645264)


@step_down(6, "Selu")
def _selu_down(node: Node, facts: Facts) -> None:
    node.attributes.setdefault("alpha", 1.6732631921768188)
    node.attributes.setdefault("gamma", 1.0507010221481323)


@step_up(4, "Concat")
def _concat_up(node: Node, facts: Facts) -> None:
    """Concat-1's axis defaults to 1."""
    node.attributes.setdefault("axis", 1)


@step_up(2, "Split")
def _split_up(node: Node, facts: Facts) -> None:
    """Split-1 takes its sizes as an input or an attribute; Split-2 only as an attribute."""
    if node.input(1) is not None:
        node.keep_old(1)


@step_up(16, "RoiAlign")
def _roi_align_up(node: Node, facts: Facts) -> None:
    """RoiAlign-10 does not shift coordinates by half a pixel."""
    node.attributes["coordinate_transformation_mode"] = "output_half_pixel"


@step_down(16, "RoiAlign")
def _roi_align_down(node: Node, facts: Facts) -> None:
    if node.attributes.pop("coordinate_transformation_mode", "half_pixel") != "output_half_pixel":
        raise CannotDowngrade("RoiAlign does not shift coordinates by half a pixel before opset 16")


@step_up(7, "LSTM", "GRU", "RNN")
def _output_sequence_up(node: Node, facts: Facts) -> None:
    """`output_sequence=0` let the first output be left out; whether it is listed says the same."""
    if "output_sequence" in node.attributes:
        node.legacy["output_sequence"] = node.attributes.pop("output_sequence")


@step_down(7, "LSTM", "GRU", "RNN")
def _output_sequence_down(node: Node, facts: Facts) -> None:
    node.attributes["output_sequence"] = node.legacy.get("output_sequence", 1)


@step_up(3, "GRU")
def _gru_direction_up(node: Node, facts: Facts) -> None:
    """GRU-1's default direction is misspelt."""
    if node.attributes.get("direction", "foward") == "foward":
        node.attributes["direction"] = "forward"


@step_up(6, "Clip")
def _clip_bounds_up(node: Node, facts: Facts) -> None:
    """Clip-1 without bounds does not clip; Clip-6's defaults are the float32 range, which is the same for finite
    numbers."""


@step_down(11, "Gemm")
def _gemm_bias(node: Node, facts: Facts) -> None:
    if node.input(2) is None:
        raise CannotDowngrade("Gemm needs its input C before opset 11")
