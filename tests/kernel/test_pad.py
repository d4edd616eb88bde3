"""Padding as copies, carried out by numpy, and with one number in one pass, interpreted and compiled: against numpy's
own padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_running import WIDTHS, run_both, run_compiled

import tilewright
from tilewright.backends.cpu.kernels.pad import (
    Dim,
    Pad,
    Piece,
    build_pad,
    joined_dims,
    pad_arguments,
    pad_pieces,
    pad_units,
)
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.graph.dtypes import DType, bool_, f32, i64, u32

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


@pytest.mark.parametrize(("mode", "size"), [("reflect", 3), ("reflect", 2), ("wrap", 3)])
def test_borders_far_wider_than_the_operand_take_few_pieces(mode: str, size: int) -> None:
    x = random.integers(0, 99, (size,))
    y = np.full(size + 3000, -1)
    carry_out(pad_pieces((size,), (1000,), (2000,), mode), x, y)
    assert np.array_equal(y, np.pad(x, (1000, 2000), mode=mode))
    assert len(pad_pieces((size,), (2**31,), (2**31,), mode)) < 80


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


# Shape, and what is before and after each dim: rows that are long and short, dims that are joined, cut off, left alone.
ONE_PASS = [
    ((3, 2, 5, 37), (0, 0, 1, 1), (0, 0, 1, 1)),
    ((2, 3, 5), (0, 2, 0), (0, 1, 0)),
    ((70,), (3,), (20,)),
    ((4, 50), (-1, -3), (2, 9)),
    ((4, 50), (1, 4), (-2, -33)),
    ((2, 40), (3, -38), (0, 60)),
    ((2, 1, 2), (40, 1, 17), (0, 0, 18)),
    ((6, 5), (-6, 0), (4, 0)),
]


def wanted(x: np.ndarray, before: tuple[int, ...], after: tuple[int, ...], number: Any) -> np.ndarray:
    """Elements of the result that lie in the operand are its own."""
    shape = [size + low + high for size, low, high in zip(x.shape, before, after, strict=True)]
    y = np.full(shape, number, x.dtype)
    places = [np.arange(n) - low for n, low in zip(shape, before, strict=True)]
    inside = [np.flatnonzero((at >= 0) & (at < size)) for at, size in zip(places, x.shape, strict=True)]
    y[np.ix_(*inside)] = x[np.ix_(*(at[these] for at, these in zip(places, inside, strict=True)))]
    return y


def planned(x: np.ndarray, before: tuple[int, ...], after: tuple[int, ...], y: np.ndarray) -> tuple[Pad, list[Any]]:
    strides = [[step // array.itemsize for step in array.strides] for array in (x, y)]
    dims = joined_dims([Dim(*each) for each in zip(x.shape, before, after, *strides, strict=True)])
    kernel = Pad(u32, len(dims))
    units, pieces = pad_units(2, *(dim.wide for dim in dims))
    known: dict[str, Any] = {"x": x.reshape(-1), "y": y.reshape(-1), "value": np.array([7], np.uint32)}
    known |= {"pieces": pieces, "begin": 0, "end": units, "thread": 0}
    for axis, dim in enumerate(dims):
        known |= {f"size{axis}": dim.size, f"wide{axis}": dim.wide, f"before{axis}": dim.before}
        known |= {f"x_outer{axis}": dim.source, f"y_outer{axis}": dim.target}
    return kernel, [known[name] for name in pad_arguments(kernel)]


@pytest.mark.parametrize(("shape", "before", "after"), ONE_PASS)
def test_one_pass(shape: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...]) -> None:
    x = random.integers(0, 99, shape).astype(np.uint32)
    expected = wanted(x, before, after, 7)
    kernel, given = planned(x, before, after, np.full_like(expected, 1000))
    for side in run_both(build_pad("pad", kernel, machine_of_width(256)), given, 256):
        assert np.array_equal(side[0].reshape(expected.shape), expected)
    for width in WIDTHS:
        kernel, given = planned(x, before, after, np.full_like(expected, 1000))
        run_compiled(build_pad("pad", kernel, machine_of_width(width)), given, width)
        assert np.array_equal(given[0].reshape(expected.shape), expected)


def test_dims_without_pads_are_joined() -> None:
    contiguous = [Dim(2, 0, 0, 60, 96), Dim(3, 0, 0, 20, 32), Dim(4, 1, 3, 5, 4), Dim(5, 0, 0, 1, 1)]
    assert joined_dims(contiguous) == [
        Dim(6, 0, 0, 20, 32), Dim(4, 1, 3, 5, 4), Dim(5, 0, 0, 1, 1)
    ]  # fmt: skip
    rows = [Dim(2, 0, 0, 20, 40), Dim(4, 1, 3, 5, 5), Dim(5, 0, 0, 1, 1)]
    assert joined_dims(rows) == [Dim(2, 0, 0, 20, 40), Dim(20, 5, 15, 1, 1)]


@pytest.mark.parametrize("dtype", [f32, i64, bool_], ids=str)
def test_operator(dtype: DType) -> None:
    """Also of transposed operands, whose result lies as they do."""
    b, feeds, expected = tilewright.Builder("pads", opset=21), {}, {}
    for number, (shape, before, after) in enumerate((ONE_PASS[0], ONE_PASS[3])):
        x = random.integers(0, 2 if dtype is bool_ else 99, shape).astype(dtype.numpy)
        operand, pads = b.input(f"x{number}", dtype[shape]), np.array([*before, *after])
        fill = np.array(1, dtype.numpy)
        b.output(b.pad(operand, pads, fill), f"y{number}")
        turned = np.array([*before[::-1], *after[::-1]])
        b.output(b.pad(b.transpose(operand, perm=list(range(len(shape)))[::-1]), turned), f"t{number}")
        feeds[f"x{number}"] = x
        expected[f"y{number}"] = wanted(x, before, after, fill)
        expected[f"t{number}"] = wanted(x.T, before[::-1], after[::-1], np.zeros((), dtype.numpy))
    for threads in (1, 3):
        results = tilewright.compile(b.build(), target="cpu", threads=threads).run(feeds)
        for name, array in expected.items():
            assert np.array_equal(results[name], array), name


def test_sizes_of_a_run() -> None:
    b = tilewright.Builder("pads", opset=21)
    b.output(b.pad(b.input("x", f32["n", 3, "w"]), np.array([0, 1, 2, 0, 0, 1])), "y")
    executable = tilewright.compile(b.build(), target="cpu", threads=2)
    for shape in ((1, 3, 5), (2, 3, 40), (3, 3, 1), (0, 3, 4), (2, 3, 0), (2, 3, 41)):
        x = random.random(shape).astype(np.float32)
        assert np.array_equal(executable.run({"x": x})["y"], wanted(x, (0, 1, 2), (0, 0, 1), 0))
