"""Inputs from the command line: `--input x=x.npy`, `--dim batch=1`, `--input-shape x:1,3,320,320`."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.graph import dtypes
from tilewright.graph.diagnostics import UsageError
from tilewright.graph.module import Module
from tilewright.graph.paths import check_source
from tilewright.graph.types import TensorType


def read_inputs(module: Module, items: Iterable[str]) -> dict[str, Any]:
    """The arrays that `--input` options give, in the types that the model wants.

    An item is `NAME=FILE.npy`, `NAME=FILE.pb` (an ONNX TensorProto), `FILE.npz` (arrays by input name), or
    `NAME=VALUE` with a number or a nested list. Raises UsageError for a bad item or a missing file.
    """
    found: dict[str, Any] = {}
    for item in items:
        for name, value in _read_item(item).items():
            if name in found:
                raise UsageError("input/twice", f"the input {name!r} is given twice")
            found[name] = value
    wanted = {argument.name: argument.type for argument in module.main.inputs}
    return {name: _typed(name, value, wanted.get(name)) for name, value in found.items()}


def _read_item(item: str) -> dict[str, Any]:
    name, equals, text = item.partition("=")
    path = Path(text if equals else name)
    if path.suffix == ".npz":
        with _reading(path), np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        if not equals:
            return arrays
        if name in arrays or len(arrays) == 1:
            return {name: arrays[name] if name in arrays else next(iter(arrays.values()))}
        raise UsageError("input/npz", f"{path} holds no array {name!r}", notes=[f"it holds {', '.join(arrays)}"])
    if not equals:
        raise UsageError("input/syntax", f"an input is given as NAME=FILE.npy or NAME=VALUE, not {item!r}")
    if path.suffix == ".npy":
        with _reading(path):
            return {name: np.load(path, allow_pickle=False)}
    if path.suffix == ".pb":
        return {name: _read_tensor_proto(path)}
    try:
        return {name: json.loads(text)}
    except json.JSONDecodeError:
        raise UsageError(
            "input/kind",
            f"{text!r} is neither a .npy, .npz or .pb file nor a number or list",
            notes=["for example: --input x=x.npy, --input rate=16000, --input ids=[[1,2,3]]"],
        ) from None


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns numpy's complaint about a file's content into an error that names the file."""
    check_source(path)
    try:
        yield
    except (ValueError, EOFError, zipfile.BadZipFile):
        hint = "numpy.save and numpy.savez write such files, of arrays without Python objects"
        raise UsageError("input/file", f"{path} does not hold numpy arrays", notes=[hint]) from None


def _read_tensor_proto(path: Path) -> np.ndarray:
    from google.protobuf.message import DecodeError
    from onnx import TensorProto

    from tilewright.graph.onnx_values import tensor_data

    check_source(path)
    proto = TensorProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except DecodeError:
        raise UsageError("input/file", f"{path} is not an ONNX tensor") from None
    return tensor_data(proto).numpy()


def _typed(name: str, value: Any, type: Any) -> Any:
    """A value as the model's input wants it: a number or list takes its dtype, raw 2-byte items are read as bf16."""
    if not isinstance(type, TensorType):
        return value
    if isinstance(value, np.ndarray):
        raw = value.dtype.kind == "V" and value.dtype.itemsize == type.dtype.numpy.itemsize
        return value.view(type.dtype.numpy) if raw else value
    try:
        array = np.asarray(value, object if type.dtype is dtypes.string else type.dtype.numpy)
    except (ValueError, TypeError, OverflowError):
        raise UsageError("input/value", f"the value of the input {name!r} does not fit its type, {type}") from None
    if type.shape is not None and array.ndim == 0 and type.static_shape is not None:
        return np.broadcast_to(array, type.static_shape).copy()
    return array


def read_sizes(dims: Iterable[str], shapes: Iterable[str]) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """What `--dim` and `--input-shape` options give. Raises UsageError."""
    from tilewright.passes.bind_dims import parse_dims, parse_shapes

    return parse_dims(list(dims)), parse_shapes(list(shapes))


def split_names(items: Iterable[str]) -> list[str]:
    """Names from options that may be repeated or hold several, separated by commas."""
    return [name for item in items for name in item.split(",") if name]
