"""Upsample, which became Resize, and the history of Resize's coordinates and inputs."""

from __future__ import annotations

import numpy as np

from ....graph.data import ArrayData
from ....graph.dtypes import f32
from ....graph.ops.legacy.movement import TF_HALF_PIXEL_ROUNDING
from .engine import step_down, step_up
from .node import CannotDowngrade, Facts, KeepOldForm, Node, constant, rank, shape

_TF_HALF_PIXEL = "tf_half_pixel_for_nn"


@step_up(7, "Upsample")
def _upsample_one_up(node: Node, facts: Facts) -> None:
    """Upsample-1 scales height and width of an NCHW tensor, and calls linear interpolation bilinear."""
    if node.has_reference("height_scale", "width_scale", "mode"):
        raise KeepOldForm
    height, width = node.attributes.pop("height_scale", 1.0), node.attributes.pop("width_scale", 1.0)
    node.attributes["scales"] = (1.0, 1.0, height, width)
    if node.attributes.get("mode") == "bilinear":
        node.attributes["mode"] = "linear"


@step_down(7, "Upsample")
def _upsample_one_down(node: Node, facts: Facts) -> None:
    scales = node.attributes.pop("scales")
    if len(scales) != 4 or scales[:2] != (1.0, 1.0):
        raise CannotDowngrade("Upsample scales only height and width before opset 7")
    node.attributes["height_scale"], node.attributes["width_scale"] = scales[2:]
    if node.attributes.get("mode") == "linear":
        node.attributes["mode"] = "bilinear"


@step_up(10, "Upsample")
def _upsample_up(node: Node, facts: Facts) -> None:
    """Upsample became Resize, see `_resize_ten_up`; it never makes a tensor smaller."""
    node.op_type = "Resize"
    node.legacy["operator"] = "Upsample"


@step_down(10, "Resize")
def _upsample_down(node: Node, facts: Facts) -> None:
    scales = constant(facts, node.input(1))
    grows = bool((scales >= 1).all()) if scales is not None else node.legacy.get("operator") == "Upsample"
    if not grows:
        raise CannotDowngrade("Upsample, which Resize was before opset 10, never makes a tensor smaller")
    node.op_type = "Upsample"


@step_up(11, "Resize")
def _resize_ten_up(node: Node, facts: Facts) -> None:
    """Resize-10 divides coordinates by the scale. Where it takes nearest elements, it rounds down in an axis that
    grows and up in one that shrinks; Resize-11 rounds one way in all axes."""
    if node.has_reference("mode"):
        raise KeepOldForm
    if node.attributes.get("mode", "nearest") == "nearest":
        rounding = "floor" if node.legacy.get("operator") == "Upsample" else _rounding(constant(facts, node.input(1)))
        if rounding is None:
            raise KeepOldForm
        node.attributes["nearest_mode"] = rounding
    node.attributes["coordinate_transformation_mode"] = "asymmetric"
    node.inputs[1:] = [None, node.input(1)]
    node.legacy["present"] = (1, 2)
    if 1 in node.from_attribute:
        node.from_attribute[2] = node.from_attribute.pop(1)


def _rounding(scales: np.ndarray | None) -> str | None:
    if scales is None:
        return None
    if bool((scales >= 1).all()):
        return "floor"
    return "ceil" if bool((scales <= 1).all()) else None


@step_down(11, "Resize")
def _resize_ten_down(node: Node, facts: Facts) -> None:
    attributes = node.attributes
    sizes, scales = node.input(3), node.input(2)
    if sizes is not None or scales is None:
        raise CannotDowngrade("Resize to given sizes does not exist before opset 11")
    if node.has_reference("mode", "nearest_mode", "coordinate_transformation_mode"):
        raise CannotDowngrade("Resize has fixed coordinates before opset 11")
    if attributes.pop("coordinate_transformation_mode", "half_pixel") != "asymmetric":
        raise CannotDowngrade("Resize maps coordinates only in the 'asymmetric' way before opset 11")
    mode, rounding = attributes.get("mode", "nearest"), attributes.pop("nearest_mode", "round_prefer_floor")
    if mode == "nearest":
        factors = constant(facts, scales)
        wanted = {_rounding(factors)} if factors is not None else {"floor"} if "operator" in node.legacy else set()
        if factors is not None and bool((factors == 1).all()):
            wanted = {"floor", "ceil"}
        if rounding not in wanted:
            raise CannotDowngrade("Resize rounds coordinates down where it grows, up where it shrinks before opset 11")
    if mode == "cubic":
        raise CannotDowngrade("cubic Resize does not exist before opset 11")
    if attributes.pop("exclude_outside", 0):
        raise CannotDowngrade("Resize cannot exclude elements outside of the tensor before opset 11")
    for name in ("cubic_coeff_a", "extrapolation_value"):  # of no effect here
        attributes.pop(name, None)
    node.inputs[1:] = [scales]


@step_up(13, "Resize")
def _resize_eleven_up(node: Node, facts: Facts) -> None:
    """`tf_half_pixel_for_nn` is gone; for nearest elements another rounding of `half_pixel` gives the same."""
    # Resize-11 wants roi and scales present; many files leave them out all the same.
    node.legacy.setdefault("present", tuple(position for position in (1, 2) if node.input(position) is not None))
    if node.has_reference("coordinate_transformation_mode"):
        raise KeepOldForm
    if node.attributes.get("coordinate_transformation_mode") != _TF_HALF_PIXEL:
        return
    if node.has_reference("mode", "nearest_mode") or node.attributes.get("mode", "nearest") != "nearest":
        raise KeepOldForm
    rounding = TF_HALF_PIXEL_ROUNDING.get(node.attributes.get("nearest_mode", "round_prefer_floor"))
    if rounding is None:
        raise KeepOldForm
    node.legacy["coordinates"] = _TF_HALF_PIXEL
    node.attributes["coordinate_transformation_mode"] = "half_pixel"
    node.attributes["nearest_mode"] = rounding


@step_down(13, "Resize")
def _resize_eleven_down(node: Node, facts: Facts) -> None:
    """Resize-11 wants `roi` and `scales` present; an empty tensor says that they are not used."""
    attributes = node.attributes
    rounding = {new: old for old, new in TF_HALF_PIXEL_ROUNDING.items()}.get(attributes.get("nearest_mode", ""))
    unchanged = attributes.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    if node.legacy.get("coordinates") == _TF_HALF_PIXEL and rounding is not None and unchanged:
        attributes["coordinate_transformation_mode"] = _TF_HALF_PIXEL
        attributes["nearest_mode"] = rounding
    for position in (1, 2):
        if node.input(position) is None and position in node.legacy.get("present", (1, 2)):
            node.set_input(position, ArrayData(np.zeros(0, np.float32), f32))


@step_down(18, "Resize")
def _resize_axes_down(node: Node, facts: Facts) -> None:
    """Before opset 18 scales and sizes are given for all axes."""
    if node.input(3) is None:
        # Only the interpretation of sizes depends on it.
        node.attributes.pop("keep_aspect_ratio_policy", None)
    axes = node.attributes.get("axes")
    if axes is None:
        return
    size = rank(facts, node.input(0))
    if size is None or node.has_reference("axes") or node.input(1) is not None:
        raise CannotDowngrade("Resize over some axes does not exist before opset 18")
    positions = [axis % size for axis in axes]
    if positions != list(range(size)):
        for index, neutral in ((2, [1.0] * size), (3, shape(facts, node.input(0)))):
            _spread(node, index, positions, neutral, facts)
    del node.attributes["axes"]


def _spread(node: Node, index: int, positions: list[int], neutral: object, facts: Facts) -> None:
    """Give input `index` an element for each axis; those at `positions` come from the old input."""
    if node.input(index) is None:
        return
    values = constant(facts, node.input(index))
    if values is None or not isinstance(neutral, list | tuple) or not all(isinstance(n, int | float) for n in neutral):
        raise CannotDowngrade("Resize over some axes, by factors or from sizes not known, has no form before opset 18")
    full = np.array(neutral, values.dtype)
    full[positions] = values
    node.set_input(index, ArrayData(full))


@step_down(19, "Resize")
def _resize_symmetric_down(node: Node, facts: Facts) -> None:
    if node.attributes.get("coordinate_transformation_mode") == "half_pixel_symmetric":
        raise CannotDowngrade("Resize has no half_pixel_symmetric coordinates before opset 19")
