"""Bytes in words and in tables, and the matrix unit, as LLVM IR. The unit is AMX: eight tiles of 16 rows of 64 bytes.

Tiles 0 to 3 hold sums, 4 and 5 parts of the left factor, 6 and 7 parts of the right one. All have the full size, so
they are configured once for each call of a kernel.
"""

from __future__ import annotations

from ...graph.core import Operation
from ...graph.diagnostics import UsageError
from .emit_llvm import FunctionEmitter, emits
from .machine import Machine

_TILE = 16
_LEFT, _RIGHT = 4, 6


@emits("loop.reinterpret")
def _reinterpret(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    buffer = op.operand_values[0]
    if e.checked:
        e.bounds[op.result] = e.bounds[buffer]
    return operands[0]


@emits("loop.lookup")
def _lookup(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    """Two instructions that choose among 128 bytes each, and a choice between what they give."""
    table, x = operands
    if getattr(op.result.type, "lanes", 0) != 64 or not has_lookup(e.emitter.machine):
        raise UsageError("cpu/lookup", "this machine has no lookup of so many bytes", op.location)
    vector = "<64 x i8>"
    parts = []
    for part in range(4):
        pointer = e.emit(f"getelementptr i8, ptr {table}, i64 {64 * part}")
        parts.append(e.emit(f"load {vector}, ptr {pointer}, align 1"))
    low, high = (
        e.intrinsic("llvm.x86.avx512.vpermi2var.qi.512", vector, *((vector, each) for each in (first, x, second)))
        for first, second in (parts[:2], parts[2:])
    )
    is_low = e.emit(f"icmp sge {vector} {x}, zeroinitializer")
    return e.emit(f"select <64 x i1> {is_low}, {vector} {low}, {vector} {high}")


def has_lookup(machine: Machine) -> bool:
    """Whether there is an instruction that looks 64 bytes up at once."""
    return machine.vector_bits == 512 and "+avx512vbmi" in machine.features.split(",")


@emits("loop.unit_begin")
def _begin(e: FunctionEmitter, op: Operation, operands: list[str]) -> None:
    """The configuration: palette 1, bytes in a row of each tile (from byte 16 on, two each), rows (from byte 48 on)."""
    if not e.emitter.machine.matrix_unit:
        raise UsageError("cpu/unit", "this machine has no unit for products of matrices", op.location)
    name = e.fresh()
    e.allocations.append(f"  {name} = alloca [64 x i8], align 64")
    content = [0] * 64
    content[0] = 1
    for tile in range(8):
        content[16 + 2 * tile], content[48 + tile] = 64, _TILE
    e.do(f"store [64 x i8] [{', '.join(f'i8 {byte}' for byte in content)}], ptr {name}, align 64")
    e.intrinsic("llvm.x86.ldtilecfg", "void", ("ptr", name))


@emits("loop.unit_end")
def _end(e: FunctionEmitter, op: Operation, operands: list[str]) -> None:
    e.intrinsic("llvm.x86.tilerelease", "void")


@emits("loop.unit_products")
def _products(e: FunctionEmitter, op: Operation, operands: list[str]) -> None:
    sums, left, left_row, right, steps, ahead, place = operands
    rows, columns, width = (int(op.attributes[name]) for name in ("rows", "columns", "width"))
    down, across = rows // _TILE, columns // _TILE
    for row in range(down):
        for column in range(across):
            e.intrinsic("llvm.x86.tilezero", "void", ("i8", str(2 * row + column)))
    head, body, done = e.labels("head", "body", "done")
    pitch = e.emit(f"mul i64 {left_row}, 4")
    before = e.label
    e.do(f"br label %{head}")
    e.start(head)
    step, following = e.fresh(), e.fresh()
    e.do(f"{step} = phi i64 [ 0, %{before} ], [ {following}, %{body} ]")
    more = e.emit(f"icmp slt i64 {step}, {steps}")
    e.do(f"br i1 {more}, label %{body}, label %{done}")
    e.start(body)
    for row in range(down):
        _load(e, _LEFT + row, left, e.emit(f"add i64 {step}, {_times(e, left_row, _TILE * row)}"), pitch)
    for column in range(across):
        place = e.emit(f"add i64 {e.emit(f'mul i64 {step}, {width}')}, {_TILE * column}")
        _load(e, _RIGHT + column, right, place, str(4 * width))
    lines = int(op.attr("lines"))
    asked = e.emit(f"add i64 {place}, {e.emit(f'mul i64 {step}, {lines}')}") if lines else ""
    for line in range(lines):
        pointer = e.emit(f"getelementptr i32, ptr {ahead}, i64 {e.emit(f'add i64 {asked}, {_TILE * line}')}")
        e.intrinsic("llvm.prefetch.p0", "void", ("ptr", pointer), ("i32", "0"), ("i32", "2"), ("i32", "1"))
    for row in range(down):
        for column in range(across):
            tiles = (2 * row + column, _LEFT + row, _RIGHT + column)
            e.intrinsic("llvm.x86.tdpbusd", "void", *(("i8", str(tile)) for tile in tiles))
    e.do(f"{following} = add i64 {step}, {_TILE}")
    e.do(f"br label %{head}")
    e.start(done)
    for row in range(down):
        for column in range(across):
            pointer = e.emit(f"getelementptr i32, ptr {sums}, i64 {_TILE * (row * columns + column)}")
            arguments = ("i8", str(2 * row + column)), ("ptr", pointer), ("i64", str(4 * columns))
            e.intrinsic("llvm.x86.tilestored64", "void", *arguments)


def _load(e: FunctionEmitter, tile: int, buffer: str, place: str, pitch: str) -> None:
    """16 rows of 16 words, `pitch` bytes apart, from word `place` of a buffer on."""
    pointer = e.emit(f"getelementptr i32, ptr {buffer}, i64 {place}")
    e.intrinsic("llvm.x86.tileloadd64", "void", ("i8", str(tile)), ("ptr", pointer), ("i64", pitch))


def _times(e: FunctionEmitter, number: str, factor: int) -> str:
    return e.emit(f"mul i64 {number}, {factor}") if factor else "0"
