"""Linear functions as matrix products: Einsum, Fourier transforms, affine grids, determinants of small matrices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from ..builder import OpBuilder
from ..core import Operation, Value
from ..dims import Dim, prove_equal
from ..dtypes import f64
from ..types import TensorType
from .builder import constant_ints, dtype_of, is_native, rank_of, shape_of
from .expansions import expands

# A transform by a larger matrix would take too much memory, and too long.
MOST_ELEMENTS = 1 << 22
# Fourier transforms in two steps have so many factors at most; beyond that, numpy's own on the host is faster.
MOST_IN_TWO_STEPS = 1 << 18


def _static(value: Value | None) -> tuple[int, ...] | None:
    return value.type.static_shape if value is not None and isinstance(value.type, TensorType) else None


def _ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


# ---- einsum ----------------------------------------------------------------------------------------------------------


@expands("Einsum")
def einsum(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """Operand after operand: each pair becomes one product, labels that nobody needs any more are summed up."""
    if not all(map(is_native, op.operand_values)) or not dtype_of(op.result).is_float:
        return None
    shapes = [shape_of(value) for value in op.operand_values]
    if any(0 in shape for shape in shapes):
        return None
    labels, wanted = _labels(str(op.attr("equation")), [len(shape) for shape in shapes])
    if not _fits(labels, shapes):
        return None
    terms = [_Term(b, value, letters) for value, letters in zip(op.operand_values, labels, strict=True)]
    terms = [term.without_repeats() for term in terms]
    total = terms[0]
    for index, other in enumerate(terms[1:], 1):
        needed = {*wanted, *(letter for term in terms[index + 1 :] for letter in term.labels)}
        total = _contracted(total, other, needed)
    return [total.summed(set(wanted)).ordered(wanted).value]


def _labels(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each operand and of the result; dims of an ellipsis get upper-case Greek ones."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    hidden = max(
        (rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True) if "..." in t), default=0
    )
    greek = "".join(chr(0x391 + index) for index in range(hidden))
    named = []
    for term, rank in zip(terms, ranks, strict=True):
        count = rank - len(term.replace("...", ""))
        named.append(term.replace("...", greek[hidden - count :] if count else ""))
    if arrow:
        return named, right.replace("...", greek)
    letters = "".join(terms).replace(".", "")
    return named, greek + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))


def _fits(labels: Sequence[str], shapes: Sequence[Sequence[Dim]]) -> bool:
    """Whether sizes are known as far as needed: those of a diagonal, and that a letter has one size or else size 1."""
    sizes: dict[str, Dim] = {}
    for letters, shape in zip(labels, shapes, strict=True):
        for letter, size in zip(letters, shape, strict=True):
            if letters.count(letter) > 1 and not isinstance(size, int):
                return False
            known = sizes.get(letter, 1)
            if known != 1 and size != 1 and prove_equal(known, size) is not True:
                return False
            sizes[letter] = known if size == 1 else size
    return True


class _Term:
    """A tensor with a letter for each dim."""

    def __init__(self, b: OpBuilder, value: Value, labels: str) -> None:
        self.b, self.value, self.labels = b, value, labels

    @property
    def sizes(self) -> dict[str, Dim]:
        return dict(zip(self.labels, shape_of(self.value), strict=True))

    def size(self, first: int, count: int = 1) -> Value | int:
        """How many elements `count` dims have; where that is open, computed: i64[1]."""
        dims = shape_of(self.value)[first : first + count]
        if all(isinstance(dim, int) for dim in dims):
            return math.prod(dim for dim in dims if isinstance(dim, int))
        sizes: Value = self.b.shape(self.value, start=first, end=first + count)
        return sizes if count == 1 else self.b.reduce_prod(sizes, keepdims=1)

    def without_repeats(self) -> _Term:
        """The diagonal where a letter stands twice: every (n + 1)-th element of both dims as one."""
        for letter in self.labels:
            while self.labels.count(letter) > 1:
                rest = [i for i, other in enumerate(self.labels) if other != letter]
                twice = [i for i, other in enumerate(self.labels) if other == letter]
                shape = _static(self.value) or ()
                size = shape[twice[0]]
                moved = self.b.transpose(self.value, perm=[*rest, *twice[2:], *twice[:2]])
                kept = [shape[i] for i in (*rest, *twice[2:])]
                flat = self.b.reshape(moved, _ints(*kept, size * size))
                last = _ints(len(kept))
                diagonal = self.b.slice(flat, _ints(0), _ints(size * size), last, _ints(size + 1))
                labels = "".join(self.labels[i] for i in (*rest, *twice[2:])) + letter
                return _Term(self.b, diagonal, labels).without_repeats()
        return self

    def summed(self, needed: set[str]) -> _Term:
        axes = [axis for axis, letter in enumerate(self.labels) if letter not in needed]
        if not axes:
            return self
        labels = "".join(letter for letter in self.labels if letter in needed)
        return _Term(self.b, self.b.reduce_sum(self.value, _ints(*axes), keepdims=0), labels)

    def ordered(self, labels: str) -> _Term:
        if labels == self.labels:
            return self
        return _Term(self.b, self.b.transpose(self.value, perm=[self.labels.index(x) for x in labels]), labels)

    def shaped(self, *groups: str) -> Value:
        """As a tensor with one dim for each group of letters."""
        moved = self.ordered("".join(groups))
        begins = itertools.accumulate(map(len, groups), initial=0)
        return _reshaped(moved, [moved.size(begin, len(group)) for begin, group in zip(begins, groups, strict=False)])


def _reshaped(x: _Term, sizes: Sequence[Value | int]) -> Value:
    """x with these sizes; none that is a number is 0, so that one which is not may be left open."""
    computed = [size for size in sizes if isinstance(size, Value)]
    if len(computed) < 2:
        result: Value = x.b.reshape(x.value, _ints(*(-1 if isinstance(size, Value) else size for size in sizes)))
        return result
    parts = [size if isinstance(size, Value) else x.b.const(_ints(size)) for size in sizes]
    result = x.b.reshape(x.value, x.b.concat(*parts, axis=0), allowzero=1)
    return result


def _contracted(x: _Term, y: _Term, needed: set[str]) -> _Term:
    """The product of two terms, over the letters that nobody needs."""
    b = x.b
    x, y = x.summed({*needed, *y.labels}), y.summed({*needed, *x.labels})
    x, y = _unbroadcast(x, y), _unbroadcast(y, x)
    shared = "".join(letter for letter in x.labels if letter in y.labels)
    batch = "".join(letter for letter in shared if letter in needed)
    inner = "".join(letter for letter in shared if letter not in needed)
    rows = "".join(letter for letter in x.labels if letter not in shared)
    columns = "".join(letter for letter in y.labels if letter not in shared)
    labels = batch + rows + columns
    product = b.matmul(x.shaped(batch, rows, inner), y.shaped(batch, inner, columns))
    sizes = [x.size(x.labels.index(each)) if each in x.labels else y.size(y.labels.index(each)) for each in labels]
    return _Term(b, _reshaped(_Term(b, product, "bmn"), sizes), labels)


def _unbroadcast(x: _Term, y: _Term) -> _Term:
    """x without dims of size 1 that are larger in y."""
    other = y.sizes
    axes = [axis for axis, (letter, size) in enumerate(x.sizes.items()) if size == 1 and other.get(letter, 1) != 1]
    if not axes:
        return x
    labels = "".join(letter for axis, letter in enumerate(x.labels) if axis not in axes)
    return _Term(x.b, x.b.squeeze(x.value, _ints(*axes)), labels)


# ---- Fourier transforms ----------------------------------------------------------------------------------------------


@expands("DFT")
def dft(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """A product with the matrix of the transform."""
    x = op.operand_values[0]
    shape = _static(x)
    length, axis = constant_ints(op.input(1)), constant_ints(op.input(2))
    if shape is None or not is_native(x) or (op.input(1) is not None and length is None):
        return None
    if op.input(2) is not None and axis is None:
        return None
    place = (axis[0] if axis else -2) % len(shape)
    inverse, onesided = bool(op.attr("inverse")), bool(op.attr("onesided"))
    size = length[0] if length else 2 * (shape[place] - 1) if inverse and onesided else shape[place]
    if place == len(shape) - 1 or shape[-1] not in (1, 2) or size < 1:  # the reference says what is wrong
        return None
    perm = [*(i for i in range(len(shape)) if i not in (place, len(shape) - 1)), place, len(shape) - 1]
    outer = [shape[i] for i in perm[:-2]]
    factors = _factors(size)
    if factors is not None and size == shape[place] and not (inverse and onesided):
        found = _in_two_steps(b, b.transpose(x, perm=perm), math.prod(outer), shape[-1], factors, inverse)
        if onesided:
            found = b.slice(found, _ints(0), _ints(size // 2 + 1), _ints(1))
        found = b.reshape(found, _ints(*outer, -1, 2))
        return [b.transpose(found, perm=[perm.index(i) for i in range(len(shape))])]
    if size * shape[place] > MOST_ELEMENTS:
        return None
    matrix = _transform(shape[place], shape[-1], size, inverse, onesided)
    flat = b.reshape(b.transpose(x, perm=perm), _ints(*outer, shape[place] * shape[-1]))
    product = _exactly(b, flat, matrix.reshape(shape[place] * shape[-1], -1))
    apart = b.reshape(product, _ints(*outer, *matrix.shape[2:]))
    return [b.transpose(apart, perm=[perm.index(i) for i in range(len(shape))])]


def _factors(size: int) -> tuple[int, int] | None:
    """Two factors of a size, if that is large and they are about as large as each other."""
    for second in range(math.isqrt(size), 7, -1):
        first = size // second
        if first * second == size and size >= 128:
            is_even = first <= 8 * second and first * (2 * second) ** 2 <= MOST_IN_TWO_STEPS
            return (first, second) if is_even else None
    return None


def _in_two_steps(b: OpBuilder, x: Value, rows: int, parts: int, factors: tuple[int, int], inverse: bool) -> Value:
    """The transforms of rows of first * second numbers of one or two parts: [second, rows, first, 2] are those of
    every second-th number, the others' factors belong to the second step (Cooley and Tukey 1965). In f64."""
    first, second = factors
    turn = (2j if inverse else -2j) * np.pi / (first * second)
    places, others = np.arange(first), np.arange(second)
    ahead = _real(np.exp(turn * second * np.outer(places, places)))[:, :parts]
    behind = np.stack([
        _real(np.exp(turn * np.outer(others, k + first * others)) / (first * second if inverse else 1)) for k in places
    ])  # fmt: skip
    wide = b.cast(b.reshape(x, _ints(rows, first, second * parts)), to=f64.onnx_code)
    cut = b.transpose(b.reshape(wide, _ints(rows, first, second, parts)), perm=[2, 0, 1, 3])
    once = b.matmul(
        b.reshape(cut, _ints(second * rows, first * parts)), b.const(ahead.reshape(first * parts, first * 2))
    )
    moved = b.transpose(b.reshape(once, _ints(second, rows, first, 2)), perm=[2, 1, 0, 3])
    twice = b.matmul(
        b.reshape(moved, _ints(first, rows, second * 2)), b.const(behind.reshape(first, second * 2, second * 2))
    )
    numbers = b.transpose(b.reshape(twice, _ints(first, rows, second, 2)), perm=[1, 2, 0, 3])
    result: Value = b.cast(b.reshape(numbers, _ints(rows, first * second, 2)), to=dtype_of(x).onnx_code)
    return result


def _real(matrix: np.ndarray) -> np.ndarray:
    """A matrix [from, to] of complex numbers as one of their parts, [from, 2, to, 2]."""
    units = np.stack([matrix, 1j * matrix], axis=1)
    return np.stack([units.real, units.imag], axis=-1)


def _exactly(b: OpBuilder, x: Value, matrix: np.ndarray) -> Value:
    """The product in f64, rounded once: sums of many terms cancel."""
    product = b.matmul(b.cast(x, to=f64.onnx_code), b.const(matrix))
    result: Value = b.cast(product, to=dtype_of(x).onnx_code)
    return result


def _transform(count: int, parts: int, size: int, inverse: bool, onesided: bool) -> np.ndarray:
    """[count, parts, results, their parts]: what each number of `count` real or complex ones gives."""
    units = np.eye(count, dtype=np.complex128)
    columns = np.stack([units, 1j * units][:parts], axis=1)
    if inverse and onesided:
        return np.asarray(np.fft.irfft(columns, n=size, axis=-1)[..., None])
    result = (np.fft.ifft if inverse else np.fft.fft)(columns, n=size, axis=-1)
    result = result[..., : size // 2 + 1] if onesided else result
    return np.stack([result.real, result.imag], axis=-1)


@expands("STFT")
def stft(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """Frames are gathered, weighted, and transformed by one product."""
    signal, window = op.operand_values[0], op.input(2)
    step, length = constant_ints(op.input(1)), constant_ints(op.input(3))
    if not is_native(signal) or rank_of(signal) not in (2, 3) or not step or (op.input(3) is not None and not length):
        return None
    taper = None if window is None else _static(window)
    if window is not None and (taper is None or dtype_of(window) is not dtype_of(signal)):
        return None
    signal = b.unsqueeze(signal, _ints(2)) if rank_of(signal) == 2 else signal
    _, samples, parts = shape_of(signal)
    size = length[0] if length else taper[0] if taper else samples
    if not isinstance(size, int) or not isinstance(parts, int) or size * size > MOST_ELEMENTS:
        return None
    if step[0] < 1 or size < 1 or (taper is not None and taper[0] != size):  # the reference says what is wrong
        return None
    if isinstance(samples, int):
        if size > samples:
            return None
        places = b.const(np.arange(0, samples - size + 1, step[0])[:, None] + np.arange(size))
    else:
        ends = b.squeeze(b.sub(b.shape(signal, start=1, end=2), _ints(size - 1)), _ints(0))
        begins = b.range(np.array(0), ends, np.array(step[0]))
        places = b.add(b.unsqueeze(begins, _ints(1)), b.const(np.arange(size)))
    taken = b.gather(signal, places, axis=1)
    if window is not None:
        taken = b.mul(taken, b.unsqueeze(window, _ints(1)))
    matrix = _transform(size, parts, size, False, bool(op.attr("onesided", 1)))
    product = _exactly(b, b.reshape(taken, _ints(0, 0, size * parts)), matrix.reshape(size * parts, -1))
    return [b.reshape(product, _ints(0, 0, *matrix.shape[2:]))]


# ---- geometry --------------------------------------------------------------------------------------------------------


@expands("AffineGrid")
def affine_grid(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """theta times the homogeneous coordinates of all places."""
    theta, size = op.operand_values[0], constant_ints(op.input(1))
    if not is_native(theta) or size is None or len(size) not in (4, 5):
        return None
    spatial = size[2:]
    lines = []
    for count in spatial:
        line = np.linspace(-1, 1, count) if op.attr("align_corners") else (2 * np.arange(count) + 1) / count - 1
        lines.append(line)
    grids = np.meshgrid(*lines, indexing="ij")
    places = np.stack([*(grid.reshape(-1) for grid in reversed(grids)), np.ones(math.prod(spatial))])
    product = b.matmul(theta, b.const(places.astype(dtype_of(theta).numpy)))
    return [b.reshape(b.transpose(product, perm=[0, 2, 1]), _ints(size[0], *spatial, len(spatial)))]


@expands("Det")
def det(op: Operation, b: OpBuilder) -> Sequence[Value] | None:
    """Of matrices of up to 3 rows, by Leibniz's formula."""
    x = op.operand_values[0]
    if not is_native(x) or not dtype_of(x).is_float or rank_of(x) < 2:
        return None
    size = x.type.shape[-1]  # type: ignore[attr-defined]
    if size not in (1, 2, 3):
        return None

    def at(row: int, column: int) -> Value:
        line = b.gather(x, b.const(np.array(row)), axis=rank_of(x) - 2)
        found: Value = b.gather(line, b.const(np.array(column)), axis=rank_of(x) - 2)
        return found

    def minor(rows: Sequence[int], columns: Sequence[int]) -> Value:
        if len(rows) == 1:
            return at(rows[0], columns[0])
        total: Value | None = None
        for index, column in enumerate(columns):
            term = b.mul(at(rows[0], column), minor(rows[1:], [*columns[:index], *columns[index + 1 :]]))
            total = term if total is None else b.sub(total, term) if index % 2 else b.add(total, term)
        assert total is not None
        return total

    return [minor(range(size), range(size))]
