"""Padding as copies, carried out by numpy, against numpy's own padding."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.backends.cpu.kernels.pad import Piece, pad_pieces

random = np.random.default_rng(2)


def carry_out(pieces: list[Piece], x: np.ndarray, y: np.ndarray) -> None:
    for piece in pieces:
        array = {"x": x, "y": y, "value": np.full((1,) * x.ndim, 7, x.dtype)}[piece.kind]
        index = np.meshgrid(
            *(s + step * np.arange(n) for s, step, n in zip(piece.source, piece.steps, piece.extents, strict=True)),
            indexing="ij",
        )
        target = tuple(slice(t, t + n) for t, n in zip(piece.target, piece.extents, strict=True))
        y[target] = array[tuple(index)]


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("shape", [(5,), (1,), (3, 4), (2, 1, 4)])
def test_modes(mode: str, shape: tuple[int, ...]) -> None:
    x = random.integers(0, 99, shape)
    for _ in range(8):
        before, after = random.integers(0, 9, len(shape)), random.integers(0, 9, len(shape))
        options = {"constant_values": 7} if mode == "constant" else {}
        expected = np.pad(x, list(zip(before, after, strict=True)), mode=mode, **options)
        y = np.full(expected.shape, -1)
        carry_out(pad_pieces(shape, before.tolist(), after.tolist(), mode), x, y)
        assert np.array_equal(y, expected)


def test_negative_widths_cut_off() -> None:
    x = random.integers(0, 99, (5, 6))
    y = np.full((6, 4), -1)
    carry_out(pad_pieces((5, 6), (2, -1), (-1, -1), "edge"), x, y)
    assert np.array_equal(y, np.pad(x[:4, 1:5], ((2, 0), (0, 0)), mode="edge"))


def test_nothing_can_be_filled_but_not_continued() -> None:
    y = np.full((3, 2), -1)
    carry_out(pad_pieces((0, 2), (1, 0), (2, 0), "constant"), np.zeros((0, 2), int), y)
    assert np.all(y == 7)
    with pytest.raises(ValueError, match="nothing that mode 'edge'"):
        pad_pieces((0, 2), (1, 0), (2, 0), "edge")
    with pytest.raises(ValueError, match="less than nothing"):
        pad_pieces((3,), (-2,), (-2,), "constant")
