"""Line charts without a plotting library: PNG files written with zlib, and a curve of a few lines of text."""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ...graph.paths import check_target

WIDTH, HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 16, 28, 36
_COLOURS = [(31, 95, 168), (200, 70, 40), (60, 140, 60), (130, 80, 160), (110, 110, 110)]
_GRID, _INK, _PAPER = (225, 225, 225), (40, 40, 40), (255, 255, 255)

# Each character as 5 rows of 3 bits.
_FONT = {
    "0": 0b111_101_101_101_111, "1": 0b010_110_010_010_111, "2": 0b111_001_111_100_111, "3": 0b111_001_111_001_111,
    "4": 0b101_101_111_001_001, "5": 0b111_100_111_001_111, "6": 0b111_100_111_101_111, "7": 0b111_001_010_010_010,
    "8": 0b111_101_111_101_111, "9": 0b111_101_111_001_111, ".": 0b000_000_000_000_010, "-": 0b000_000_111_000_000,
    "+": 0b000_010_111_010_000, "/": 0b001_001_010_100_100, "a": 0b111_101_111_101_101, "b": 0b110_101_110_101_110,
    "c": 0b111_100_100_100_111, "d": 0b110_101_101_101_110, "e": 0b111_100_110_100_111, "f": 0b111_100_110_100_100,
    "g": 0b111_100_101_101_111, "h": 0b101_101_111_101_101, "i": 0b111_010_010_010_111, "j": 0b001_001_001_101_111,
    "k": 0b101_101_110_101_101, "l": 0b100_100_100_100_111, "m": 0b101_111_111_101_101, "n": 0b111_101_101_101_101,
    "o": 0b010_101_101_101_010, "p": 0b111_101_111_100_100, "q": 0b111_101_101_111_001, "r": 0b110_101_110_101_101,
    "s": 0b011_100_010_001_110, "t": 0b111_010_010_010_010, "u": 0b101_101_101_101_111, "v": 0b101_101_101_101_010,
    "w": 0b101_101_111_111_101, "x": 0b101_101_010_101_101, "y": 0b101_101_010_010_010, "z": 0b111_001_010_100_111,
    ":": 0b000_010_000_010_000, "=": 0b000_111_000_111_000, "%": 0b101_001_010_100_101,
}  # fmt: skip


def save_chart(
    path: str | os.PathLike[str], series: Mapping[str, Sequence[float]], title: str = "", logarithmic: bool = False
) -> None:
    """Draw each series over its index as a line into a PNG of 720 x 420 pixels. Numbers that are not finite, or not
    above 0 on a logarithmic axis, are gaps. Raises UsageError for a path that cannot be a file."""
    check_target(path, "chart")
    Path(path).write_bytes(png(_drawn(series, title, logarithmic)))


def png(pixels: np.ndarray) -> bytes:
    """`pixels` u8[height, width, 3] as a PNG (ISO/IEC 15948)."""
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _drawn(series: Mapping[str, Sequence[float]], title: str, logarithmic: bool) -> np.ndarray:
    pixels = np.full((HEIGHT, WIDTH, 3), _PAPER, np.uint8)
    lines = {name: _scaled(values, logarithmic) for name, values in series.items()}
    known = np.concatenate([line[np.isfinite(line)] for line in lines.values()] or [np.zeros(0)])
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if high == low:
        low, high = low - 0.5, high + 0.5
    steps = max([2, *(len(line) for line in lines.values())]) - 1
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    for share in np.linspace(0, 1, 5):
        y = round(bottom - share * (bottom - _TOP))
        pixels[y, _LEFT:right] = _GRID
        at = low + share * (high - low)
        _write(pixels, 4, y - 5, _short(10**at if logarithmic else at))
        x = round(_LEFT + share * (right - _LEFT))
        _write(pixels, min(x - 8, right - 40), bottom + 10, _short(share * steps))
    for index, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        xs = _LEFT + np.arange(len(line)) / steps * (right - _LEFT)
        ys = bottom - (line - low) / (high - low) * (bottom - _TOP)
        _draw_line(pixels, xs, ys, colour)
        if len(lines) > 1:
            _write(pixels, right - 8 * len(name) - 8, _TOP + 6 + 14 * index, name, colour)
    _write(pixels, _LEFT, 8, title)
    pixels[_TOP : bottom + 1, _LEFT] = pixels[bottom, _LEFT:right] = _INK
    return pixels


def _scaled(values: Sequence[float], logarithmic: bool) -> np.ndarray:
    array = np.asarray(values, np.float64)
    array = np.where(np.isfinite(array), array, np.nan)
    if not logarithmic:
        return array
    return np.log10(np.where(array > 0, array, np.nan))


def _draw_line(pixels: np.ndarray, xs: np.ndarray, ys: np.ndarray, colour: tuple[int, int, int]) -> None:
    for index in range(len(xs)):
        if not np.isfinite(ys[index]):
            continue
        after = index + 1 if index + 1 < len(xs) and np.isfinite(ys[index + 1]) else index
        count = int(max(abs(xs[after] - xs[index]), abs(ys[after] - ys[index]))) + 2
        columns = np.linspace(xs[index], xs[after], count).round().astype(int)
        rows = np.linspace(ys[index], ys[after], count).round().astype(int)
        pixels[rows, columns] = colour
        pixels[np.minimum(rows + 1, HEIGHT - 1), columns] = colour


def _write(pixels: np.ndarray, x: int, y: int, text: str, colour: tuple[int, int, int] = _INK) -> None:
    """`text` in letters of 6 x 10 pixels; characters without a glyph are left blank."""
    for letter in text.lower():
        bits = _FONT.get(letter, 0)
        for place in range(15):
            if bits >> (14 - place) & 1:
                row, column = y + place // 3 * 2, x + place % 3 * 2
                pixels[row : row + 2, column : column + 2] = colour
        x += 8


def _short(number: float) -> str:
    text = f"{number:.3g}"
    return text.replace("e+0", "e").replace("e-0", "e-")


def spans_decades(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis shows more of them: all are above 0, some a hundred times as large as others."""
    known = [value for value in values if math.isfinite(value)]
    return bool(known) and 0 < 100 * min(known) < max(known)


def text_curve(values: Sequence[float], width: int = 60, height: int = 8) -> str:
    """`values` as a curve of `height` lines of text, mean over equal stretches; the scale on the left, logarithmic
    where means lie decades apart."""
    known = np.asarray([value for value in values if math.isfinite(value)], np.float64)
    if not known.size:
        return "(no finite number)"
    parts = [float(part.mean()) for part in np.array_split(known, min(width, known.size))]
    logarithmic = spans_decades(parts)
    if logarithmic:
        parts = [math.log10(part) for part in parts]
    low, high = min(parts), max(parts)
    levels = [round((part - low) / (high - low) * (height - 1)) if high > low else 0 for part in parts]
    lines = []
    for row in range(height - 1, -1, -1):
        at = low + (high - low) * row / (height - 1)
        label = f"{10**at if logarithmic else at:9.4g}" if row in (0, height - 1) else " " * 9
        lines.append(f"{label} |" + "".join("*" if level == row else " " for level in levels).rstrip())
    return "\n".join(lines)
