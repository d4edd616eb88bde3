"""What Tilewright computes and what PyTorch computes, side by side: the cases of test_torch_gradients.py.

A case is the same function twice, on a `Builder` and on `torch`, and the float operands whose gradients are compared.
The numbers that go in are drawn here, from generators whose streams numpy never changes, so that PyTorch's results can
be written down (record_torch_gradients.py) and compared where PyTorch is not installed. Neither is imported here.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FAMILIES = ("elementwise", "products", "movement", "windows", "layers", "control")


@dataclass(frozen=True)
class Draw:
    """An operand to draw: normal numbers times `scale`, or even ones from `low` to `high`."""

    shape: tuple[int, ...]
    scale: float = 1.0
    low: float | None = None
    high: float = 1.0


@dataclass(frozen=True)
class Case:
    """`ours(b, **operands)` and `theirs(torch, **operands)` give a tensor, or several, of the same operands.

    In the place of `ours` there may be the text of a module.
    """

    name: str
    ours: Callable[..., Any] | str
    theirs: Callable[..., Any]
    operands: dict[str, Any]

    def feeds(self) -> dict[str, np.ndarray]:
        """The operands in f32: arrays as they are, shapes filled with normal numbers."""
        random = np.random.RandomState(zlib.crc32(self.name.encode()))
        return {name: _array(operand, random) for name, operand in self.operands.items()}

    def weights(self, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
        """What the adjoints of the results are."""
        random = np.random.RandomState(zlib.crc32(f"{self.name} adjoints".encode()))
        return [np.asarray(random.standard_normal(shape), np.float32) for shape in shapes]


def _array(operand: Any, random: np.random.RandomState) -> np.ndarray:
    if isinstance(operand, np.ndarray):
        return operand.astype(np.float32)
    draw = operand if isinstance(operand, Draw) else Draw(operand)
    if draw.low is None:
        return np.asarray(draw.scale * random.standard_normal(draw.shape), np.float32)
    return np.asarray(random.uniform(draw.low, draw.high, draw.shape), np.float32)


CASES: dict[str, Case] = {}


def case(name: str, ours: Callable[..., Any] | str, theirs: Callable[..., Any], **operands: Any) -> None:
    """Add a case. An operand is a shape, a `Draw`, or an array."""
    if name in CASES:
        raise ValueError(f"there is a case {name!r} already")
    CASES[name] = Case(name, ours, theirs, operands)


def all_cases() -> dict[str, Case]:
    """Every case by its name."""
    for family in FAMILIES:
        importlib.import_module(f".{family}", __package__)
    return CASES


def recorded(path: Path) -> dict[str, np.ndarray]:
    """What is written down: for each case results, then gradients, end to end."""
    with np.load(path) as file:
        ends = np.cumsum(file["sizes"])
        parts = np.split(file["values"], ends[:-1])
        return dict(zip(map(str, file["names"]), parts, strict=True))
