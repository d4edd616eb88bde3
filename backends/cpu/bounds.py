"""A debug mode, `TILEWRIGHT_CHECK_BOUNDS=1`: kernels check each address that they read or write.

A pointer then travels with the first and the last byte of the value's memory: they are in a program's table, and
arguments of each function. An access outside goes to memory that nobody needs, and is written down; when the program
has run, that is raised as an error that names the kernel, the operation of the level "loop" and the buffer. Values
that have not been written yet read as NaN. Code of this mode is many times slower and never kept on disk.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from ...graph import dtypes, types
from ...graph.diagnostics import ExecutionError

if TYPE_CHECKING:
    from ...graph.core import Operation, Value
    from .emit_llvm import FunctionEmitter

BOUNDS_VARIABLE = "TILEWRIGHT_CHECK_BOUNDS"

# What was accessed last out of bounds: the number of its place from 1, the first byte within the memory of the value,
# how many bytes, and how many that memory has. Then somewhere else for what would be written there, and for data.
_record = (ctypes.c_int64 * 1024)()
_NOWHERE, _DATA = 64, 128
_places: dict[str, int] = {}
UNWRITTEN = 0xFF


def checks_bounds() -> bool:
    return os.environ.get(BOUNDS_VARIABLE, "") not in ("", "0")


def check_functions() -> str:
    """LLVM IR of what accesses call: the address to use, for one of `bytes` bytes; and a note of a bad one."""
    record = ctypes.addressof(_record)
    return f"""
define internal void @note(i1 %ok, i64 %place, i64 %first, i64 %bytes, i64 %size) #1 {{
  %where = select i1 %ok, i64 {record + _NOWHERE}, i64 {record}
  %p0 = inttoptr i64 %where to ptr
  %p1 = getelementptr i64, ptr %p0, i64 1
  %p2 = getelementptr i64, ptr %p0, i64 2
  %p3 = getelementptr i64, ptr %p0, i64 3
  store i64 %place, ptr %p0
  store i64 %first, ptr %p1
  store i64 %bytes, ptr %p2
  store i64 %size, ptr %p3
  ret void
}}
define internal ptr @checked(i64 %place, ptr %pointer, i64 %bytes, i64 %low, i64 %high) #1 {{
  %address = ptrtoint ptr %pointer to i64
  %first = sub i64 %address, %low
  %size = sub i64 %high, %low
  %room = sub i64 %size, %bytes
  %fits = icmp uge i64 %size, %bytes
  %inside = icmp ule i64 %first, %room
  %ok = and i1 %fits, %inside
  call void @note(i1 %ok, i64 %place, i64 %first, i64 %bytes, i64 %size)
  %other = inttoptr i64 {record + _DATA} to ptr
  %result = select i1 %ok, ptr %pointer, ptr %other
  ret ptr %result
}}
"""


def checked_pointer(e: FunctionEmitter, op: Operation, buffer: Value, pointer: str, bytes: int) -> str:
    """The address to use for an access of so many bytes."""
    low, high = e.bounds[buffer]
    place = _place(e, op, buffer)
    return e.emit(f"call ptr @checked(i64 {place}, ptr {pointer}, i64 {bytes}, i64 {low}, i64 {high})")


def checked_lanes(e: FunctionEmitter, op: Operation, buffer: Value, pointers: str, mask: str, lanes: int) -> str:
    """`mask` without the lanes whose pointer, one of a vector, is out of bounds."""
    low, high = e.bounds[buffer]
    assert isinstance(buffer.type, types.BufferType)
    bytes = max(buffer.type.dtype.bits // 8, 1)
    vector, bits = f"<{lanes} x i64>", f"<{lanes} x i1>"

    def splat(number: str) -> str:
        one = e.emit(f"insertelement {vector} poison, i64 {number}, i32 0")
        return e.emit(f"shufflevector {vector} {one}, {vector} poison, <{lanes} x i32> zeroinitializer")

    addresses = e.emit(f"ptrtoint <{lanes} x ptr> {pointers} to {vector}")
    first = e.emit(f"sub {vector} {addresses}, {splat(low)}")
    size = e.emit(f"sub i64 {high}, {low}")
    # Addresses are of whole elements, and so is the memory of a value.
    inside = e.emit(f"icmp ult {vector} {first}, {splat(size)}")
    outside = e.emit(f"xor {bits} {inside}, {_all(lanes)}")
    bad = e.emit(f"and {bits} {outside}, {mask}")
    any_bad = e.intrinsic(f"llvm.vector.reduce.or.v{lanes}i1", "i1", (bits, bad))
    ok = e.emit(f"xor i1 {any_bad}, true")
    worst = e.emit(f"select {bits} {bad}, {vector} {first}, {vector} zeroinitializer")
    place = e.intrinsic(f"llvm.vector.reduce.umax.v{lanes}i64", "i64", (vector, worst))
    e.do(f"call void @note(i1 {ok}, i64 {_place(e, op, buffer)}, i64 {place}, i64 {bytes}, i64 {size})")
    return e.emit(f"and {bits} {mask}, {inside}")


def checked_row(e: FunctionEmitter, op: Operation, buffer: Value, pointer: str, mask: str, lanes: int) -> str:
    """`mask` without the lanes that are out of bounds, those being next to each other from `pointer` on."""
    assert isinstance(buffer.type, types.BufferType)
    bytes = max(buffer.type.dtype.bits // 8, 1)
    steps = ", ".join(f"i64 {lane * bytes}" for lane in range(lanes))
    pointers = e.emit(f"getelementptr i8, ptr {pointer}, <{lanes} x i64> <{steps}>")
    return checked_lanes(e, op, buffer, pointers, mask, lanes)


def _all(lanes: int) -> str:
    return f"<{', '.join(['i1 true'] * lanes)}>"


def _place(e: FunctionEmitter, op: Operation, buffer: Value) -> int:
    """A number for this access."""
    kernel, root = str(e.emitter.module.main.key.name), buffer
    while root.producer is not None and root.producer.name == "loop.view":
        root = root.producer.operand_values[0]
    name = f"%{root.name}" if root.producer is None else "its own memory"
    function = "" if e.function is e.emitter.module.main else f" (@{e.function.key.name})"
    dtype = buffer.type.dtype if isinstance(buffer.type, types.BufferType) else dtypes.f32
    number = e.access = e.access + 1
    text = f"{kernel}{function}: {op.name.removeprefix('loop.')} {number} of {name} ({dtype})"
    return _places.setdefault(text, len(_places) + 1)


def forget() -> None:
    """Before a program: nothing has gone wrong."""
    _record[0] = 0


def complain() -> None:
    """After a program: raise ExecutionError if an access of it, or of one beside it, was out of bounds."""
    number = _record[0]
    if not number:
        return
    _record[0] = 0
    text = next(text for text, place in _places.items() if place == number)
    first, bytes, size = _record[1:4]
    raise ExecutionError("cpu/bounds", f"{text} is out of bounds: {bytes} bytes at {first} of {size}")
