"""Constant tensors that stay where they are: memory-mapped until somebody needs numbers, hashed once.

`TensorData` is immutable. `ArrayData` holds a numpy array, `MappedData` a range of a mapped file (never copied on
import), `ComputedData` what can be computed again, `UnresolvedData` only knows its hash: it prints and compares, and
fails when its numbers are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np

from .cached import cached_property
from .diagnostics import ModelError, UsageError
from .dtypes import DType, from_numpy, string
from .forks import hold_while_forking
from .types import TensorType, tensor

_COPY_CHUNK = 1 << 24
_LARGE_PAGE = 1 << 21
_MIN_COMPUTED_BYTES = 1 << 16


class MappedFile:
    """A file mapped read-only. `open` returns one mapping per file for as long as somebody uses it."""

    _open: ClassVar[weakref.WeakValueDictionary[tuple[int, int, int, int], MappedFile]] = weakref.WeakValueDictionary()
    _lock: ClassVar[threading.Lock] = threading.Lock()
    hold_while_forking(_lock)

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.size = os.fstat(file.fileno()).st_size
        self.descriptor = os.dup(file.fileno())
        # An empty file cannot be mapped (mmap(2)); it has no bytes to read either.
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else None
        self.view = memoryview(self._map) if self._map is not None else memoryview(b"")
        weakref.finalize(self, os.close, self.descriptor)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> MappedFile:
        """Map `path`; an already mapped, unchanged file is shared. Raises OSError as `open` does."""
        with open(path, "rb") as file, cls._lock:
            status = os.fstat(file.fileno())
            key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            found = cls._open.get(key)
            if found is None:
                found = cls._open[key] = cls(Path(path).resolve(), file)
            return found

    def release(self, offset: int, length: int) -> None:
        """Give the pages of a range back to the system; who reads them again gets them from the file.

        So do those around it that a large page may have brought in together with them.
        """
        if self._map is None or not length or not hasattr(mmap, "MADV_DONTNEED"):
            return
        begin = offset // _LARGE_PAGE * _LARGE_PAGE
        end = min(-(-(offset + length) // _LARGE_PAGE) * _LARGE_PAGE, self.size)
        if begin < end:
            with contextlib.suppress(OSError):  # a page that is locked in memory stays there
                self._map.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    @classmethod
    def is_open(cls, path: str | os.PathLike[str]) -> bool:
        """Whether somebody here uses a mapping of the file at `path`."""
        place = Path(path).resolve()
        with cls._lock:
            return any(mapped.path == place for mapped in cls._open.values())


def replace_file(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Rename `source` over `target`. A mapping of the old file stays as it was; a system that does not let go of a
    mapped file (Windows) gives a PermissionError that says so."""
    try:
        os.replace(source, target)
    except PermissionError as error:
        if not MappedFile.is_open(target):
            raise
        reason = "weights are read from this file, and this system does not let it be replaced; write another file"
        raise PermissionError(error.errno, reason, os.fspath(target)) from None


class TensorData:
    """An immutable constant tensor with a static shape. A subclass has `numpy` and `raw`."""

    dtype: DType
    shape: tuple[int, ...]

    def numpy(self) -> np.ndarray:
        """The elements, shape `shape`, dtype `dtype.numpy`; read-only, without a copy where possible."""
        raise NotImplementedError

    def raw(self) -> memoryview:
        """The elements as ONNX stores them in `raw_data`: little-endian, row-major, sub-byte types packed."""
        raise NotImplementedError

    @cached_property
    def type(self) -> TensorType:
        return tensor(self.dtype, self.shape)

    @property
    def elements(self) -> int:
        total = 1
        for dim in self.shape:
            total *= dim
        return total

    @property
    def nbytes(self) -> int:
        """Bytes of `raw()`; for strings the sum of their UTF-8 lengths."""
        return self.dtype.storage_bytes(self.elements)

    def write_to(self, file: BinaryIO) -> None:
        """Write `raw()` to a binary file."""
        file.write(self.raw())

    def release(self) -> None:
        """Say that the numbers are not needed for now: memory that can be filled again is given back."""

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that stay taken after `release`."""
        return self.nbytes

    @cached_property
    def sha256(self) -> str:
        """Hex digest over dtype, shape and content; the identity of the constant in IR text."""
        digest = hashlib.sha256(f"{self.dtype}{list(self.shape)}".encode())
        digest.update(self.raw())
        return digest.hexdigest()

    def same_as(self, other: TensorData) -> bool:
        """Whether dtype, shape and every bit agree (+0.0 and -0.0 differ, NaNs compare by their bits)."""
        if self is other:
            return True
        if self.dtype is not other.dtype or self.shape != other.shape:
            return False
        hashed = "sha256" in self.__dict__ and "sha256" in other.__dict__
        if hashed or isinstance(self, UnresolvedData) or isinstance(other, UnresolvedData):
            return self.sha256 == other.sha256
        mine, theirs = self.raw(), other.raw()
        return mine[:64] == theirs[:64] and _same_bytes(mine, theirs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.type}>"


class ArrayData(TensorData):
    """A constant held as a numpy array (strings: an object array of str or bytes)."""

    def __init__(self, array: np.ndarray, dtype: DType | None = None) -> None:
        self.dtype = dtype or from_numpy(array.dtype)
        self.shape = tuple(array.shape)
        if self.dtype is string:
            values = array.astype(object)
        else:
            # asarray keeps 0-d arrays 0-d, ascontiguousarray does not.
            values = np.asarray(array, dtype=self.dtype.numpy, order="C")
        self._array = values.view()
        self._array.flags.writeable = False

    def numpy(self) -> np.ndarray:
        return self._array

    def raw(self) -> memoryview:
        if self.dtype is string:
            # ONNX has no raw form of strings. Their lengths keep ["a\0", "b"] and ["a", "\0b"] apart.
            items = [_encode(item) for item in self._array.ravel()]
            return memoryview(b"".join(len(item).to_bytes(8, "little") + item for item in items))
        if self.dtype.bits < 8:
            return memoryview(pack_bits(self._array, self.dtype))
        return self._array.reshape(-1).view(np.uint8).data

    @property
    def nbytes(self) -> int:
        if self.dtype is string:
            return sum(len(_encode(item)) for item in self._array.ravel())
        return super().nbytes


class MappedData(TensorData):
    """A constant that is `length` bytes at `offset` of a mapped file, in ONNX raw form."""

    def __init__(self, file: MappedFile, offset: int, length: int, dtype: DType, shape: tuple[int, ...]) -> None:
        self.file, self.offset, self.length = file, offset, length
        self.dtype, self.shape = dtype, shape
        if length != self.nbytes:
            raise ModelError("onnx/tensor-size", f"{self.type} takes {self.nbytes} bytes, its data has {length}")

    def raw(self) -> memoryview:
        return self.file.view[self.offset : self.offset + self.length]

    def numpy(self) -> np.ndarray:
        return from_raw(self.raw(), self.dtype, self.shape)

    def release(self) -> None:
        self.file.release(self.offset, self.length)

    @property
    def held_bytes(self) -> int:
        return 0

    def write_to(self, file: BinaryIO) -> None:
        """Copy file to file inside the kernel, so that the pages do not enter this process's memory."""
        file.flush()
        done = 0
        while done < self.length:
            count = min(self.length - done, _COPY_CHUNK)
            try:
                copied = os.sendfile(file.fileno(), self.file.descriptor, self.offset + done, count)
            except (OSError, AttributeError):
                chunk = self.raw()[done : done + count]
                file.write(chunk)
                file.flush()
                copied = len(chunk)
            if copied == 0:
                raise OSError(f"{self.file.path} became shorter while it was being copied")
            done += copied
        file.seek(0, os.SEEK_END)


class ComputedData(TensorData):
    """A constant that follows from others, its `sources`: `compute` gives the same `array` again when somebody needs it
    after `release`. `computed` and `derived` make one where that pays."""

    def __init__(
        self,
        compute: Callable[[], np.ndarray],
        sources: Sequence[TensorData],
        dtype: DType,
        shape: tuple[int, ...],
        array: np.ndarray | None = None,
    ) -> None:
        """`array` is what `compute` gives, if that is known already."""
        self.dtype, self.shape = dtype, shape
        self._compute, self.sources = compute, tuple(sources)
        self._used: Callable[[], np.ndarray | None] = _nobody
        self._array = None if array is None else self._settled(array)

    def numpy(self) -> np.ndarray:
        # Somebody may still use the array that was released here.
        found = self._array if self._array is not None else self._used()
        if found is None:
            found = self._settled(self._compute())
        self._array = found
        return found

    def _settled(self, array: np.ndarray) -> np.ndarray:
        settled = np.asarray(array, dtype=self.dtype.numpy, order="C").view()
        settled.flags.writeable = False
        self._used = weakref.ref(settled)
        self._release_sources()
        return settled

    def raw(self) -> memoryview:
        return ArrayData(self.numpy(), self.dtype).raw()

    def release(self) -> None:
        self._array = None
        self._release_sources()  # whose pages the array may be a view of

    def _release_sources(self) -> None:
        for source in self.sources:
            source.release()

    @property
    def held_bytes(self) -> int:
        return sum(source.held_bytes for source in self.sources)


MISSING_WEIGHTS = (
    "a .tw file finds its weights in the model files of its own folder; in Python, pass weights=FOLDER or "
    "weights=MODULE to tilewright.parse"
)


class UnresolvedData(TensorData):
    """A constant of which only type and hash are known (IR text parsed without its weights)."""

    def __init__(self, dtype: DType, shape: tuple[int, ...], sha256: str) -> None:
        self.dtype, self.shape = dtype, shape
        self.__dict__["sha256"] = sha256

    def numpy(self) -> np.ndarray:
        raise self._missing()

    def raw(self) -> memoryview:
        raise self._missing()

    def _missing(self) -> ModelError:
        return ModelError(
            "data/unresolved",
            f"the constant {self.type} with sha256 {self.sha256[:12]}... is not loaded",
            notes=[MISSING_WEIGHTS],
        )


class SparseData(TensorData):
    """A constant of which only some elements are stored (ONNX `SparseTensorProto`, COO format).

    `values` has shape [NNZ]; `indices` is i64, [NNZ] of linear positions or [NNZ, rank] of coordinates.
    """

    def __init__(self, values: TensorData, indices: TensorData, shape: tuple[int, ...]) -> None:
        self.values, self.indices, self.shape = values, indices, shape
        self.dtype = values.dtype

    @cached_property
    def _dense(self) -> np.ndarray:
        dense = np.zeros(self.shape, self.dtype.numpy)
        indices = self.indices.numpy()
        if indices.ndim == 2:
            dense[tuple(indices.T)] = self.values.numpy()
        else:
            dense.reshape(-1)[indices] = self.values.numpy()
        dense.flags.writeable = False
        return dense

    def numpy(self) -> np.ndarray:
        return self._dense

    def raw(self) -> memoryview:
        return ArrayData(self._dense, self.dtype).raw()


def _same_bytes(a: memoryview, b: memoryview) -> bool:
    """Compared as 64-bit words: memoryviews compare byte by byte, which takes seconds for a large model."""
    words = len(a) // 8 * 8
    if len(a) != len(b) or a[words:] != b[words:]:
        return False
    return np.array_equal(np.frombuffer(a[:words], np.uint64), np.frombuffer(b[:words], np.uint64))


def _encode(item: object) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode()


def pack_bits(array: np.ndarray, dtype: DType) -> bytes:
    """Pack one-element-per-byte values into `dtype.bits`-wide fields, first element in the low bits (ONNX spec)."""
    codes = np.ravel(array).view(np.uint8) & np.uint8((1 << dtype.bits) - 1)
    bits = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, : dtype.bits]
    return np.packbits(bits.ravel(), bitorder="little").tobytes()


def from_raw(raw: memoryview | bytes, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """The array that `raw` stores (inverse of `TensorData.raw`), read-only; no copy for whole-byte types."""
    if dtype.bits < 8:
        count = 1
        for dim in shape:
            count *= dim
        bits = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")[: count * dtype.bits]
        codes = np.packbits(bits.reshape(count, dtype.bits), axis=1, bitorder="little").ravel()
        if dtype.kind == "int":
            # ml_dtypes reads the low bits but keeps the byte; sign-extend so that equal values have equal bytes.
            shift = 8 - dtype.bits
            codes = ((codes << shift).view(np.int8) >> shift).view(np.uint8)
        array = codes.view(dtype.numpy).reshape(shape)
    else:
        array = np.frombuffer(raw, dtype.numpy).reshape(shape)
    array.flags.writeable = False
    return array


def computed(
    compute: Callable[[], np.ndarray], sources: Sequence[TensorData], array: np.ndarray, dtype: DType | None = None
) -> TensorData:
    """A constant with the elements of `array`, which `compute` makes of `sources`.

    Its memory can be given back if it is large and the sources, which then stay, are in a file for the most part.
    """
    data = ArrayData(array, dtype)
    if not _can_be_released(data.dtype, array.nbytes, sources):
        return data
    return ComputedData(compute, sources, data.dtype, data.shape, array)


def derived(
    function: Callable[..., np.ndarray],
    *sources: TensorData,
    dtype: DType | None = None,
    shape: tuple[int, ...] | None = None,
) -> TensorData:
    """The constant that `function` makes of the elements of `sources`; a large one can be computed again.

    Where its dtype and shape are given, it is not computed before somebody reads it.
    """

    def compute() -> np.ndarray:
        return function(*(source.numpy() for source in sources))

    if (
        dtype is not None
        and shape is not None
        and _can_be_released(dtype, math.prod(shape) * dtype.numpy.itemsize, sources)
    ):
        return ComputedData(compute, sources, dtype, shape)
    return computed(compute, sources, compute(), dtype)


def _can_be_released(dtype: DType, size: int, sources: Sequence[TensorData]) -> bool:
    """Whether a constant of `size` bytes is better computed again than kept."""
    is_worth_it = size >= _MIN_COMPUTED_BYTES and dtype is not string
    return is_worth_it and 2 * sum(source.held_bytes for source in sources) <= size


def _nobody() -> None:
    """A reference to no array."""


def as_data(value: object, dtype: DType | None = None) -> TensorData:
    """`value` (TensorData, array, number, string or nested list) as a constant; Python floats become f32, ints i64.

    Raises UsageError for anything else, and for what `dtype` cannot hold.
    """
    if isinstance(value, TensorData):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return ArrayData(_plain(np.asarray(value), value), dtype)
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths, or of arrays of different shapes
        array = np.empty(1, object)
    _plain(array, value)
    if dtype is None and array.dtype == np.float64:
        array = array.astype(np.float32)
    if dtype is None or dtype is string:
        return ArrayData(array, dtype)
    if array.dtype.kind in "OSU":
        raise UsageError("constant/value", f"{value!r} is no constant of {dtype}")
    return ArrayData(array.astype(dtype.numpy), dtype)


def _plain(array: np.ndarray, value: object) -> np.ndarray:
    """The array, which holds numbers or strings. Raises UsageError if it holds other objects."""
    if array.dtype.kind == "O" and not all(isinstance(item, str | bytes) for item in array.flat):
        raise UsageError(
            "constant/value", f"a constant holds numbers or strings, in lists of equal lengths; {value!r} does not"
        )
    return array
