"""Planning convolutions and pools."""

from __future__ import annotations

from ...graph.core import Operation
from .planner import Halo, Planner, View


def wanted_halo(planner: Planner, op: Operation) -> None:
    """Ask for the room around the image that the window of `op` reads."""


def clear_halo(planner: Planner, view: View, halo: Halo) -> None:
    """Put zeros around an image."""
    raise NotImplementedError
