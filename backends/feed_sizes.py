"""Sizes for the symbolic dims of a model's inputs, to try in order: nobody writes down which sizes a model accepts.

Every free dim gets a role by its name and place: batch, channels, image (height and width) or length. Dims of one
name are equal. The sizes of a role are tried from ordinary to odd until a run succeeds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

from ..graph.diagnostics import UsageError
from ..graph.dims import Dim, DimSyntaxError, evaluate, is_symbol, parse_dim, symbol, symbols_of
from ..graph.types import TensorType, Type

BATCH = (1, 2, 3, 4, 8)
CHANNELS = (3, 1, 4, 8, 16, 64)
# 64 x 64 suits networks that halve the image up to six times; 48 high is what readers of text lines take.
IMAGE = (
    (64, 64), (96, 128), (48, 192), (48, 320), (224, 224), (32, 32), (320, 320), (28, 28), (256, 256), (299, 299),
    (512, 512), (640, 640), (8, 8), (1, 1),
)  # fmt: skip
# Tokens, audio samples, feature frames. A second entry of distinct sizes tells dims of different names apart.
LENGTH = (16, 7, 128, 256, 512, 384, 64, 2, 1, 77, 197, 576, 1024, 3000, 4096, 16000)
UNRANKED: tuple[tuple[int, ...], ...] = ((2, 3), (4,), (), (2, 3, 4), (1, 3, 16, 16))
# Where a model leaves more than this open, the oddest options are not tried.
MOST_COMBINATIONS = 20_000

_BATCH_NAME = re.compile(r"batch", re.IGNORECASE)
_LENGTH_NAME = re.compile(r"seq|len|past|time|token|frame|step|sample", re.IGNORECASE)
_HEIGHT_NAME = re.compile(r"^h$|height", re.IGNORECASE)
_WIDTH_NAME = re.compile(r"^w$|width", re.IGNORECASE)

Sizes = Mapping[str, int]


@dataclass
class Choice:
    """One thing to choose: `options` in order of preference; a later option costs `weight` more than the one before."""

    name: str
    options: Sequence[Any]
    weight: int = 1


@dataclass
class FreeDims:
    """The named and nameless symbolic dims of some inputs, and the role of each.

    A nameless dim is known as `input[axis]`. `roles` maps a dim's key to batch, channels, height, width or length.
    """

    roles: dict[str, str] = field(default_factory=dict)
    pinned: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, type: Type) -> None:
        """Take up the dims of the input `name`; a dim that is a batch anywhere is one everywhere."""
        if not isinstance(type, TensorType) or type.shape is None:
            return
        for axis, dim in enumerate(type.shape):
            resolved = resolve(dim, name, axis)
            for key in sorted(each.label for each in symbols_of(resolved)):
                role = _role(key, axis, type.shape) if is_symbol(resolved) else "length"
                if key not in self.roles or role == "batch":
                    self.roles[key] = role

    def pin(self, key: str, size: int, why: str) -> None:
        """Fix a dim. Raises UsageError if it is fixed to another size already."""
        known = self.pinned.setdefault(key, size)
        if known != size:
            raise UsageError("feeds/dim-conflict", f"the dim {key!r} is {known} elsewhere, but {size} by {why}")

    def pin_shape(self, name: str, type: Type, shape: Sequence[int], why: str) -> None:
        """Fix the dims of the input `name` to `shape`. Raises UsageError where the two do not fit."""
        if not isinstance(type, TensorType) or type.shape is None:
            return
        if len(shape) != len(type.shape):
            raise UsageError("feeds/rank", f"the input {name!r} is {type}, but {why} has rank {len(shape)}")
        for axis, (dim, size) in enumerate(zip(type.shape, shape, strict=True)):
            resolved = resolve(dim, name, axis)
            if isinstance(resolved, int) and resolved != size:
                raise UsageError(
                    "feeds/shape", f"dim {axis} of the input {name!r} is {resolved}, not {size} as {why} says"
                )
            if not isinstance(resolved, int) and is_symbol(resolved):
                self.pin(resolved.label, size, why)

    def choices(self, lengths: Sequence[int] = ()) -> list[Choice]:
        """What is left to choose once some dims are pinned: an option is the sizes of all dims of a role.

        `lengths` are tried soon, after two ordinary ones.
        """
        by_role: dict[str, list[str]] = {}
        for key, role in self.roles.items():
            if key not in self.pinned:
                by_role.setdefault(role, []).append(key)
        choices = []
        if batch := by_role.get("batch"):
            choices.append(Choice("batch", [dict.fromkeys(batch, size) for size in BATCH], 4))
        if channels := by_role.get("channels"):
            choices.append(Choice("channels", [dict.fromkeys(channels, size) for size in CHANNELS], 3))
        high, wide = by_role.get("height", []), by_role.get("width", [])
        if high or wide:
            options = [dict.fromkeys(high, height) | dict.fromkeys(wide, width) for height, width in IMAGE]
            choices.append(Choice("image", [option for at, option in enumerate(options) if option not in options[:at]]))
        if length := by_role.get("length"):
            sizes = dict.fromkeys((*LENGTH[:2], *lengths, *LENGTH[2:]))
            options = [dict.fromkeys(length, size) for size in sizes]
            options[1] = {key: LENGTH[1] + 2 * position for position, key in enumerate(length)}
            choices.append(Choice("length", options))
        return choices


def usual_shapes(inputs: Mapping[str, Type]) -> Iterator[dict[str, tuple[int, ...]]]:
    """Ordinary shapes of the inputs whose rank is known: for one item in a batch, and for two where batches are open.

    There are none where the size of images is open, as it decides on too much, and of images there is one in a batch.
    """
    dims = FreeDims()
    for name, type in inputs.items():
        dims.add(name, type)
    choices = {choice.name: choice for choice in dims.choices()}
    if "image" in choices or "channels" in choices:
        return
    ranked = {n: t.shape for n, t in inputs.items() if isinstance(t, TensorType) and t.shape is not None}
    has_images = any(len(shape) >= 4 for shape in ranked.values())
    for batch in range(2 if "batch" in choices and not has_images else 1):
        options = [choice.options[batch if name == "batch" else 0] for name, choice in choices.items()]
        sizes = {key: size for option in options for key, size in option.items()}
        yield {name: shape_for(name, shape, sizes) for name, shape in ranked.items()}


def _role(label: str, axis: int, shape: Sequence[Dim]) -> str:
    rank = len(shape)
    is_named = "[" not in label
    named: tuple[tuple[re.Pattern[str], str], ...] = (
        (_BATCH_NAME, "batch"), (_LENGTH_NAME, "length"), (_HEIGHT_NAME, "height"), (_WIDTH_NAME, "width"),
    )  # fmt: skip
    for pattern, role in named if is_named else ():
        if pattern.search(label):
            return role
    if axis == 0 and rank >= 2:
        return "batch"
    channels_last = rank == 4 and isinstance(shape[3], int) and shape[3] <= 4 and not isinstance(shape[1], int)
    if rank >= 4:
        places = ("batch", "height", "width", "channels") if channels_last else ("batch", "channels", "height", "width")
        return places[min(axis, 3)]
    # [layers, batch, features], as the states of recurrent networks are
    if rank == 3 and axis == 1 and isinstance(shape[0], int) and not is_named:
        return "batch"
    return "length"


def resolve(dim: Dim, name: str, axis: int) -> Dim:
    """The dim in terms of one symbol per name, whatever its ordinal; `input[axis]` for a nameless one.

    A name such as `past + present` is read as the sum that it says.
    """
    if isinstance(dim, int) or not is_symbol(dim):
        return dim
    if dim.label.startswith("?"):
        return symbol(f"{name}[{axis}]")
    try:
        parsed = parse_dim(dim.label)
    except DimSyntaxError:
        return symbol(dim.label)
    return parsed if symbols_of(parsed) else symbol(dim.label)


def shape_for(name: str, shape: Sequence[Dim], sizes: Sizes) -> tuple[int, ...]:
    """The numbers of the shape of input `name`; a dim without a size is 1. Raises UsageError if one is negative."""
    numbers = []
    for axis, dim in enumerate(shape):
        resolved = resolve(dim, name, axis)
        size = evaluate(resolved, {each: sizes.get(each.label, 1) for each in symbols_of(resolved)})
        if size < 0:
            raise UsageError("feeds/negative-dim", f"dim {axis} of the input {name!r}, {dim}, would be {size}")
        numbers.append(size)
    return tuple(numbers)


def combinations(choices: Sequence[Choice], unlike: Sequence[tuple[int, ...]] = ()) -> Iterator[tuple[int, ...]]:
    """Indices into each choice's options, cheapest first, without those in `unlike`.

    With `unlike` not empty, those that differ from all of it in most places come first.
    """
    counts = [len(choice.options) for choice in choices]
    while prod(counts) > MOST_COMBINATIONS:
        counts[counts.index(max(counts))] -= 1

    def cost(indices: tuple[int, ...]) -> tuple[int, int]:
        shared = sum(mine == other for taken in unlike for mine, other in zip(indices, taken, strict=True))
        return shared, sum(choice.weight * index for choice, index in zip(choices, indices, strict=True))

    every = product(*map(range, counts))
    yield from sorted((indices for indices in every if indices not in unlike), key=cost)
