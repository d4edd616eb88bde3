"""The text of atoms in the IR: strings, bytes, numbers and the elements of tensors, each with its inverse.

A number without a suffix in an attribute is a float32, as in ONNX, so `0.1` reads as the float32 nearest to 0.1; a
value that is no float32 carries the suffix `f64`. Elements of a tensor are written for their own dtype: the shortest
decimal that reads back to the same bits, or, where no decimal does (NaN payloads), the bits themselves as `0x7fc1`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from . import dtypes
from .data import ArrayData, TensorData
from .dtypes import DType

# ---- strings and bytes -----------------------------------------------------------------------------------------------

# What JSON may leave as it is but a terminal or a file cannot show or hold: controls, line separators, surrogates.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
_BYTE_ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|(.|$))", re.DOTALL)


def quote(text: str) -> str:
    """`text` as a JSON string, with letters of any script left readable."""
    return json.dumps(text, ensure_ascii=_UNPRINTABLE.search(text) is not None)


def unquote(text: str) -> str:
    """Inverse of `quote`. Raises ValueError for anything but a JSON string."""
    value = json.loads(text)
    if not isinstance(value, str):
        raise ValueError(f"{text} is not a string")
    return value


def bytes_text(value: bytes) -> str:
    r"""`value` as `b"..."`: printable ASCII as it is, everything else as `\xNN`."""
    shown = "".join(chr(code) if 32 <= code < 127 and code not in (34, 92) else f"\\x{code:02x}" for code in value)
    return f'b"{shown}"'


def bytes_of(text: str) -> bytes:
    """Inverse of `bytes_text`. Raises ValueError for an unknown escape or a character beyond ASCII."""

    def decode(match: re.Match[bytes]) -> bytes:
        if match[1] is None and match[2] not in (b'"', b"\\"):
            raise ValueError(r"a bytes literal knows the escapes \xNN, \" and \\")
        return bytes.fromhex(match[1].decode()) if match[1] is not None else match[2]

    return _BYTE_ESCAPE.sub(decode, text[2:-1].encode("ascii"))


# ---- floats of attributes --------------------------------------------------------------------------------------------


def float_text(value: float) -> str:
    """The shortest text that `float_of` reads back as the same float64; `nan`, `inf`, `-inf` for the special ones."""
    value = float(value)
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    with np.errstate(over="ignore", under="ignore"):
        narrow = np.float32(value)
    text = str(narrow)
    if float(narrow) == value and float_of(text) == value:
        return text
    return f"{value!r}f64"


def float_of(text: str) -> float:
    """Inverse of `float_text`. Raises ValueError for a number beyond float32 without the suffix `f64`."""
    if text.endswith("f64"):
        return float(text[:-3])
    value = float(text)
    with np.errstate(over="ignore", under="ignore"):
        narrow = float(np.float32(value))
    if math.isinf(narrow) and not math.isinf(value):
        raise ValueError(f"{text} is beyond the range of f32; write {text}f64 for a float64")
    return narrow


# ---- elements of tensors ---------------------------------------------------------------------------------------------


def tensor_text(data: TensorData) -> str:
    """All elements of `data` as nested lists (`[[1, 2], [3, 4]]`); a scalar without brackets, `[]` if empty."""
    items = element_texts(data)
    return nest(items, data.shape)


def nest(items: list[str], shape: Sequence[int]) -> str:
    """Put brackets around row-major `items` as `shape` says."""
    if not items:
        return "[]"
    for dim in reversed(shape):
        items = [f"[{', '.join(items[start : start + dim])}]" for start in range(0, len(items), dim)]
    return items[0]


def element_texts(data: TensorData) -> list[str]:
    """The elements in row-major order, each as text that `elements_of` reads back bit for bit."""
    dtype, array = data.dtype, np.ravel(data.numpy())
    if dtype is dtypes.string:
        return [bytes_text(item) if isinstance(item, bytes) else quote(str(item)) for item in array]
    if dtype.is_integer:
        return [str(item) for item in (array if dtype.bits >= 8 else array.astype(np.int64)).tolist()]
    if dtype.kind == "bool":
        texts = ["true" if item else "false" for item in array.tolist()]
    elif dtype.kind == "complex":
        texts = [f"({item.real!s}, {item.imag!s})" for item in array]
    else:
        texts = [_shortest(item, dtype) for item in array]
    if dtype.bits < 8:
        return texts
    wanted, read = _codes(array, dtype), _codes(_elements(texts, dtype), dtype)
    for index in np.flatnonzero((wanted != read).any(axis=1)):
        texts[index] = f"0x{int.from_bytes(wanted[index].tobytes(), 'little'):0{2 * dtype.numpy.itemsize}x}"
    return texts


def tensor_of(texts: Sequence[str], dtype: DType, shape: tuple[int, ...]) -> ArrayData:
    """Inverse of `element_texts`. Raises ValueError for text that does not fit `dtype`."""
    return ArrayData(_elements(texts, dtype).reshape(shape), dtype)


# 448.0 is plainer than 4.5e+02, the shortest text that the 8-bit float of that value needs.
_EXACT_WIDTH = 8


def _shortest(item: np.generic, dtype: DType) -> str:
    if dtype.bits >= 32:
        return str(item)
    wide = float(item)
    if not math.isfinite(wide):
        return float_text(wide)
    if len(exact := repr(wide)) <= _EXACT_WIDTH:
        return exact
    for digits in range(1, 10):
        text = f"{wide:.{digits}g}"
        if float(dtype.numpy.type(float(text))) == wide:
            break
    return text if re.search("[.e]", text) else f"{text}.0"


def _codes(array: np.ndarray, dtype: DType) -> np.ndarray:
    """The bytes of each element, one row each."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(-1, dtype.numpy.itemsize)


def _elements(texts: Sequence[str], dtype: DType) -> np.ndarray:
    if dtype is dtypes.string:
        items = np.empty(len(texts), object)
        items[:] = [bytes_of(text) if text.startswith("b") else unquote(text) for text in texts]
        return items
    read = _READERS[dtype.kind]
    array = read([text if not text.startswith("0x") else _ZERO[dtype.kind] for text in texts], dtype)
    for index, text in enumerate(texts):
        if text.startswith("0x"):
            array[index : index + 1] = _from_code(text, dtype)
    return array


def _from_code(text: str, dtype: DType) -> np.ndarray:
    size = dtype.numpy.itemsize
    if len(text) != 2 + 2 * size:
        raise ValueError(f"{text}: the bits of {dtype} have {2 * size} digits")
    return np.frombuffer(int(text, 16).to_bytes(size, "little"), dtype.numpy)


_ZERO = {"float": "1.0", "complex": "(0.0, 0.0)", "int": "0", "uint": "0", "bool": "false"}


def _read_floats(texts: Sequence[str], dtype: DType) -> np.ndarray:
    wide = np.array([_float(text) for text in texts], np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        array = wide.astype(dtype.numpy)
        read = array.astype(np.float64)
        lost = (np.isnan(wide) != np.isnan(read)) | (np.isinf(wide) != np.isinf(read))
    if lost.any():
        raise ValueError(f"{texts[int(np.argmax(lost))]} is beyond the range of {dtype}")
    return array


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text[:40]} is not a number") from None


def _read_complex(texts: Sequence[str], dtype: DType) -> np.ndarray:
    parts = [part for text in texts for part in text.strip("()").split(",")]
    half = dtypes.f32 if dtype is dtypes.c64 else dtypes.f64
    return _read_floats(parts, half).view(dtype.numpy)


def _read_integers(texts: Sequence[str], dtype: DType) -> np.ndarray:
    values = [_integer(text) for text in texts]
    low, high = (
        (0, 2**dtype.bits - 1) if dtype.kind == "uint" else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)
    )
    for value in values:
        if not low <= value <= high:
            raise ValueError(f"{value} is beyond the range of {dtype}, {low} to {high}")
    return np.array(values, np.uint64 if dtype.kind == "uint" else np.int64).astype(dtype.numpy)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text[:40]} is not an integer") from None


def _read_bools(texts: Sequence[str], dtype: DType) -> np.ndarray:
    for text in texts:
        if text not in ("true", "false"):
            raise ValueError(f"{text} is not a bool; write true or false")
    return np.array([text == "true" for text in texts], np.bool_)


_READERS: dict[str, Callable[[Sequence[str], DType], np.ndarray]] = {
    "float": _read_floats,
    "complex": _read_complex,
    "int": _read_integers,
    "uint": _read_integers,
    "bool": _read_bools,
}
