"""The operators of the domain `loop` as LLVM IR."""

from __future__ import annotations

from ...graph import dtypes, types
from ...graph.core import Operation, Value
from ...graph.types import Type
from .bounds import checked_lanes, checked_pointer, checked_row
from .emit_llvm import SUFFIXES, FunctionEmitter, emits, llvm_type, memory_type, operand_facts, splat
from .emit_scalars import arithmetic, prepare_divisor


@emits("loop.for")
def _for(e: FunctionEmitter, op: Operation, operands: list[str]) -> list[str]:
    begin, end, step, *carried = operands
    head, body, done = e.labels("head", "body", "done")
    before = e.label
    block = op.regions["body"].block
    e.do(f"br label %{head}")
    e.start(head)
    phis = [e.fresh() for _ in block.arguments]
    place = len(e.lines)
    condition = e.emit(f"icmp slt i64 {phis[0]}, {end}")
    e.do(f"br i1 {condition}, label %{body}, label %{done}")
    e.start(body)
    e.names.update(zip(block.arguments, phis, strict=True))
    following = e.block(block)
    following.insert(0, e.emit(f"add nsw i64 {phis[0]}, {step}"))
    e.do(f"br label %{head}")
    lines = [
        f"  {phi} = phi {llvm_type(argument.type)} [ {first}, %{before} ], [ {new}, %{e.label} ]"
        for phi, argument, first, new in zip(phis, block.arguments, [begin, *carried], following, strict=True)
    ]
    e.lines[place:place] = lines
    e.start(done)
    return phis[1:]


@emits("loop.if")
def _if(e: FunctionEmitter, op: Operation, operands: list[str]) -> list[str]:
    then, otherwise, done = e.labels("then", "else", "endif")
    e.do(f"br i1 {operands[0]}, label %{then}, label %{otherwise}")
    ends = []
    for label, name in ((then, "then"), (otherwise, "else")):
        e.start(label)
        values = e.block(op.regions[name].block)
        ends.append((values, e.label))
        e.do(f"br label %{done}")
    e.start(done)
    (yes, from_yes), (no, from_no) = ends
    return [
        e.emit(f"phi {llvm_type(result.type)} [ {a}, %{from_yes} ], [ {b}, %{from_no} ]")
        for result, a, b in zip(op.results, yes, no, strict=True)
    ]


@emits("loop.call")
def _call(e: FunctionEmitter, op: Operation, operands: list[str]) -> str | None:
    call = f"@{op.attributes['callee']}({e.arguments(op.operand_values)})"
    if op.results:
        return e.emit(f"call {llvm_type(op.result.type)} {call}")
    e.do(f"call void {call}")
    return None


# ---- memory ----------------------------------------------------------------------------------------------------------


def _memory(type: Type) -> tuple[str, str, int]:
    """How a scalar or vector lies in memory: LLVM type, intrinsic suffix, bytes of one element."""
    assert isinstance(type, types.ScalarType | types.VectorType)
    element = memory_type(type.dtype)
    suffix = SUFFIXES.get(element, element)
    if isinstance(type, types.VectorType):
        return f"<{type.lanes} x {element}>", f"v{type.lanes}{suffix}", max(type.dtype.bits // 8, 1)
    return element, suffix, max(type.dtype.bits // 8, 1)


def _lanes(type: Type) -> int:
    return type.lanes if isinstance(type, types.VectorType) else 1


def _from_memory(e: FunctionEmitter, type: Type, name: str) -> str:
    if getattr(type, "dtype", None) is not dtypes.bool_:
        return name
    stored = _memory(type)[0]
    return e.emit(f"icmp ne {stored} {name}, zeroinitializer")


def _to_memory(e: FunctionEmitter, type: Type, name: str) -> str:
    if getattr(type, "dtype", None) is not dtypes.bool_:
        return name
    return e.emit(f"zext {llvm_type(type)} {name} to {_memory(type)[0]}")


@emits("loop.load")
def _load(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    buffer = op.operands[0]
    assert buffer is not None
    type = op.result.type
    stored, suffix, align = _memory(type)
    pointer = e.address(buffer, operands[1])
    mask_name = operands[2] if len(operands) > 2 else ""
    pointer, mask_name = _checked(e, op, buffer, type, pointer, mask_name)
    if not mask_name:
        loaded = e.emit(f"load {stored}, ptr {pointer}, align {align}")
    else:
        mask = f"<{type.lanes} x i1>"  # type: ignore[attr-defined]
        arguments = [("ptr", f"align {align} {pointer}"), (mask, mask_name), (stored, "zeroinitializer")]
        loaded = e.intrinsic(f"llvm.masked.load.{suffix}.p0", stored, *arguments)
    return _from_memory(e, type, loaded)


@emits("loop.store")
def _store(e: FunctionEmitter, op: Operation, operands: list[str]) -> None:
    value, buffer = op.operands[:2]
    assert value is not None
    assert buffer is not None
    stored, suffix, align = _memory(value.type)
    name = _to_memory(e, value.type, operands[0])
    pointer = e.address(buffer, operands[2])
    mask_name = operands[3] if len(operands) > 3 else ""
    pointer, mask_name = _checked(e, op, buffer, value.type, pointer, mask_name)
    if op.attr("streams") and not e.checked:
        e.emitter.declarations.add("!0 = !{i32 1}")
        e.do(f"store {stored} {name}, ptr {pointer}, align {align * _lanes(value.type)}, !nontemporal !0")
    elif not mask_name:
        e.do(f"store {stored} {name}, ptr {pointer}, align {align}")
    else:
        mask = f"<{value.type.lanes} x i1>"  # type: ignore[attr-defined]
        arguments = [(stored, name), ("ptr", f"align {align} {pointer}"), (mask, mask_name)]
        e.intrinsic(f"llvm.masked.store.{suffix}.p0", "void", *arguments)


def _checked(e: FunctionEmitter, op: Operation, buffer: Value, type: Type, pointer: str, mask: str) -> tuple[str, str]:
    """The address and the mask of an access in a row, made harmless if bounds are checked."""
    if not e.checked:
        return pointer, mask
    if mask:
        return pointer, checked_row(e, op, buffer, pointer, mask, _lanes(type))
    return checked_pointer(e, op, buffer, pointer, _memory(type)[2] * _lanes(type)), ""


@emits("loop.gather")
def _gather(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    type = op.result.type
    assert isinstance(type, types.VectorType)
    stored, suffix, align = _memory(type)
    pointers, mask = _pointers(e, op, 0, operands[0], operands[1], operands[2:])
    arguments = [
        (f"<{type.lanes} x ptr>", f"align {align} {pointers}"), (f"<{type.lanes} x i1>", mask),
        (stored, "zeroinitializer"),
    ]  # fmt: skip
    loaded = e.intrinsic(f"llvm.masked.gather.{suffix}.v{type.lanes}p0", stored, *arguments)
    return _from_memory(e, type, loaded)


@emits("loop.scatter")
def _scatter(e: FunctionEmitter, op: Operation, operands: list[str]) -> None:
    value = op.operands[0]
    assert value is not None
    assert isinstance(value.type, types.VectorType)
    lanes = value.type.lanes
    stored, suffix, align = _memory(value.type)
    name = _to_memory(e, value.type, operands[0])
    pointers, mask = _pointers(e, op, 1, operands[1], operands[2], operands[3:])
    arguments = [
        (stored, name), (f"<{lanes} x ptr>", f"align {align} {pointers}"), (f"<{lanes} x i1>", mask),
    ]  # fmt: skip
    e.intrinsic(f"llvm.masked.scatter.{suffix}.v{lanes}p0", "void", *arguments)


def _pointers(
    e: FunctionEmitter, op: Operation, position: int, buffer: str, indices: str, mask: list[str]
) -> tuple[str, str]:
    """Addresses of the elements at `indices`, and the mask: all true if none is given."""
    type, home = op.operand_values[position + 1].type, op.operand_values[position].type
    assert isinstance(type, types.VectorType)
    assert isinstance(home, types.BufferType)
    element = memory_type(home.dtype)
    pointers = e.emit(f"{e.element_pointer} {element}, ptr {buffer}, {llvm_type(type)} {indices}")
    lanes = mask[0] if mask else splat(types.vector(dtypes.bool_, type.lanes), "true")
    if e.checked:
        lanes = checked_lanes(e, op, op.operand_values[position], pointers, lanes, type.lanes)
    return pointers, lanes


@emits("loop.alloc")
def _alloc(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    name = e.fresh()
    element = memory_type(op.attributes["element"].dtype)
    e.allocations.append(f"  {name} = alloca [{op.attributes['size']} x {element}], align 64")
    if e.checked:
        bytes = int(op.attributes["size"]) * max(op.attributes["element"].dtype.bits // 8, 1)
        low = e.emit(f"ptrtoint ptr {name} to i64")
        e.bounds[op.result] = low, e.emit(f"add i64 {low}, {bytes}")
    return name


@emits("loop.view")
def _view(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    buffer = op.operands[0]
    assert buffer is not None
    if e.checked:
        e.bounds[op.result] = e.bounds[buffer]
    return e.address(buffer, operands[1])


@emits("loop.prefetch")
def _prefetch(e: FunctionEmitter, op: Operation, operands: list[str]) -> None:
    buffer = op.operands[0]
    assert buffer is not None
    assert isinstance(buffer.type, types.BufferType)
    # It may lie outside, so that is not promised.
    pointer = e.emit(f"getelementptr {memory_type(buffer.type.dtype)}, ptr {e.names[buffer]}, i64 {operands[1]}")
    locality = {1: 3, 2: 2, 3: 1}[op.attr("level")]
    writes = str(int(op.attr("writes")))
    e.intrinsic("llvm.prefetch.p0", "void", ("ptr", pointer), ("i32", writes), ("i32", str(locality)), ("i32", "1"))


@emits("loop.until_aligned")
def _until_aligned(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    buffer = op.operands[0]
    assert buffer is not None
    assert isinstance(buffer.type, types.BufferType)
    address = e.emit(f"ptrtoint ptr {e.address(buffer, operands[1])} to i64")
    missing = e.emit(f"and i64 {e.emit(f'sub i64 0, {address}')}, {op.attr('bytes') - 1}")
    return e.emit(f"udiv i64 {missing}, {max(buffer.type.dtype.bits // 8, 1)}")


@emits("loop.fence")
def _fence(e: FunctionEmitter, op: Operation, operands: list[str]) -> None:
    e.do("fence seq_cst")


# ---- lanes -----------------------------------------------------------------------------------------------------------


@emits("loop.broadcast")
def _broadcast(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    scalar, vector = operand_facts(op)[0], llvm_type(op.result.type)
    single = e.emit(f"insertelement {vector} poison, {scalar} {operands[0]}, i32 0")
    lanes = op.attributes["lanes"]
    result = e.emit(f"shufflevector {vector} {single}, {vector} poison, <{lanes} x i32> zeroinitializer")
    prepare_divisor(e, op.result, result)
    return result


@emits("loop.iota")
def _iota(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    return f"<{', '.join(f'i64 {lane}' for lane in range(op.attributes['lanes']))}>"


@emits("loop.extract")
def _extract(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    return e.emit(f"extractelement {operand_facts(op)[0]} {operands[0]}, i32 {op.attributes['lane']}")


@emits("loop.insert")
def _insert(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    vector, value = operand_facts(op)[0], operand_facts(op, 1)[0]
    return e.emit(f"insertelement {vector} {operands[0]}, {value} {operands[1]}, i32 {op.attributes['lane']}")


@emits("loop.shuffle")
def _shuffle(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    vector, lanes = operand_facts(op)[0], op.attributes["lanes"]
    mask = ", ".join(f"i32 {lane}" for lane in lanes)
    return e.emit(f"shufflevector {vector} {operands[0]}, {vector} {operands[1]}, <{len(lanes)} x i32> <{mask}>")


@emits("loop.any")
def _any(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    type = op.operand_values[0].type
    assert isinstance(type, types.VectorType)
    bits = e.emit(f"bitcast {llvm_type(type)} {operands[0]} to i{type.lanes}")
    return e.emit(f"icmp ne i{type.lanes} {bits}, 0")


@emits("loop.reduce_add", "loop.reduce_mul", "loop.reduce_min", "loop.reduce_max")
def _reduce(e: FunctionEmitter, op: Operation, operands: list[str]) -> str:
    """Halves are combined until one number is left, so that the order is the same on every machine."""
    name, type = operands[0], op.operand_values[0].type
    how = op.name.removeprefix("loop.reduce_")
    assert isinstance(type, types.VectorType)
    while type.lanes > 1:
        half = type.lanes // 2
        vector, narrow = llvm_type(type), types.vector(type.dtype, half)
        parts = []
        for start in (0, half):
            mask = ", ".join(f"i32 {lane}" for lane in range(start, start + half))
            parts.append(e.emit(f"shufflevector {vector} {name}, {vector} poison, <{half} x i32> <{mask}>"))
        name, type = arithmetic(e, how, narrow, parts), narrow
    return e.emit(f"extractelement {llvm_type(type)} {name}, i32 0")
