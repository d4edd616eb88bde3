"""Boxes chosen by overlap: two kernels, in the interpreter and compiled, against the reference implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both, run_compiled

import tilewright
from tilewright.backends.cpu.kernels.suppress import (
    Suppress,
    build_collect,
    build_suppress,
    collect_arguments,
    suppress_arguments,
    suppress_scratch,
)
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import f32
from tilewright.graph.model_builder import Builder


def boxes_and_scores(batches: int, classes: int, boxes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    corners = random.random((batches, boxes, 4)).astype(np.float32) * 4
    scores = np.round(random.random((batches, classes, boxes)), 2).astype(np.float32)  # with equal ones
    return corners, scores


def reference(corners: np.ndarray, scores: np.ndarray, limit: int, overlap: float, **options: Any) -> np.ndarray:
    b = Builder("boxes")
    least = options.pop("least", None)
    x, y = b.input("x", f32[corners.shape]), b.input("y", f32[scores.shape])
    numbers = [np.array([limit]), np.array([overlap], np.float32)]
    numbers += [] if least is None else [np.array([least], np.float32)]
    b.output(b.non_max_suppression(x, y, *numbers, **options), "chosen")
    return tilewright.compile(b.build(), target="reference").run({"x": corners, "y": scores})["chosen"]


def chosen(
    corners: np.ndarray, scores: np.ndarray, limit: int, overlap: float, width: int, parts: int = 1, **options: Any
) -> np.ndarray:
    least, centred = options.get("least"), bool(options.get("center_point_box"))
    machine = machine_of_width(width)
    batches, classes, boxes = scores.shape
    units, most = batches * classes, min(limit, boxes)
    known: dict[str, Any] = {
        "batches": batches, "classes": classes, "boxes": boxes, "most": most, "thread": 0,
        "corners": corners.reshape(-1), "scores": scores.reshape(-1), "limit": np.array([limit]),
        "overlap": np.array([overlap], np.float32), "least": np.array([least or 0], np.float32),
        "scratch": np.zeros(suppress_scratch(boxes, most), np.int64), "counts": np.zeros(units, np.int64),
        "chosen": np.zeros(units * most, np.int64), "y": np.zeros(units * most * 3, np.int64),
        "total": np.zeros(1, np.int64),
    }  # fmt: skip
    kernel = Suppress(centred, least is not None)
    for module, names in (
        (build_suppress("suppress", kernel, machine), suppress_arguments()),
        (build_collect("collect", machine), collect_arguments()),
    ):
        for part in range(parts):
            known |= {"begin": part * units // parts, "end": (part + 1) * units // parts}
            given = [known[name] for name in names]
            if parts == 1:
                ours, compiled = run_both(module, given, width)
                for name, mine, other in zip(names, ours, compiled, strict=True):
                    assert name in ("scratch", "corners") or np.array_equal(mine, other), name
            run_compiled(module, given, width)
    total = int(known["total"][0])
    return known["y"][: 3 * total].reshape(total, 3)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("options", [{}, {"least": 0.4}, {"center_point_box": 1}], ids=["all", "least", "centred"])
def test_both_ways(width: int, options: dict[str, Any]) -> None:
    corners, scores = boxes_and_scores(2, 2, 21)
    wanted = reference(corners, scores, 6, 0.2, **options)
    assert len(wanted) > 4
    np.testing.assert_array_equal(chosen(corners, scores, 6, 0.2, width, **options), wanted)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_many_boxes(parts: int) -> None:
    """So many that they are ordered digit by digit."""
    corners, scores = boxes_and_scores(1, 5, 150, seed=1)
    wanted = reference(corners, scores, 40, 0.5, least=0.05)
    np.testing.assert_array_equal(chosen(corners, scores, 40, 0.5, 512, parts, least=0.05), wanted)


def test_boxes_without_area_stay() -> None:
    corners = np.array([[[0, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0], [np.nan, 0, 1, 1]]], np.float32)
    scores = np.array([[[0.9, 0.8, 0.7, 0.6, 0.5]]], np.float32)
    found = chosen(corners, scores, 5, 0.5, 256)
    assert found[:, 2].tolist()[:3] == [0, 1, 2]
    assert 3 not in found[:, 2]  # the first one with its corners exchanged
