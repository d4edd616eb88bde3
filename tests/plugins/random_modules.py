"""Hypothesis strategies for IR modules: everything the data structure can hold, sensible or not.

The modules obey the rules of scoping, so they can be printed and parsed; operators get operands, attributes and types
that mean nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tilewright.graph import dtypes, opdef, types
from tilewright.graph.core import AttributeReference, Block, BlockOutput, Operation, Region, Value
from tilewright.graph.data import ArrayData, SparseData, TensorData, from_raw
from tilewright.graph.dims import floordiv, symbol
from tilewright.graph.location import UNKNOWN, FileLocation, FusedLocation, NodeLocation
from tilewright.graph.module import Function, FunctionKey, Module

text = st.one_of(
    st.sampled_from(["x", "0", "12", "", "a b", "input:0", "onnx::MatMul_1", "/enc/0/Add"]), st.text(max_size=5)
)
names = st.one_of(st.none(), text)
locations = st.recursive(
    st.one_of(
        st.just(UNKNOWN),
        st.builds(NodeLocation, text, st.integers(-1, 100)),
        st.builds(FileLocation, text, st.integers(0, 1000)),
    ),
    lambda inner: st.builds(FusedLocation, text, st.lists(inner, max_size=3).map(tuple)),
    max_leaves=4,
)

_n = symbol("n")
_symbols = [_n, symbol("n", 2), symbol("batch size"), symbol("h", 0, 1, 64), symbol("?3"), symbol("k", 0, None, None)]
dims = st.one_of(
    st.integers(0, 5),
    st.sampled_from([*_symbols, _n * _symbols[3] + 1, floordiv(_n + 1, 2), 2 * _n]),
)
any_dtype = st.sampled_from(dtypes.ALL)
shapes = st.one_of(st.none(), st.lists(dims, max_size=3))
tensor_types = st.builds(types.tensor, any_dtype, shapes)
all_types = st.recursive(
    st.one_of(
        tensor_types,
        st.builds(types.sparse, any_dtype, shapes),
        st.just(types.UNKNOWN),
        st.builds(types.opaque, text, text),
        st.builds(types.scalar, any_dtype),
        st.builds(types.vector, any_dtype, st.integers(1, 64)),
        st.builds(types.buffer, any_dtype, text),
    ),
    lambda inner: st.one_of(
        st.builds(types.sequence, inner), st.builds(types.optional, inner), st.builds(types.map_of, any_dtype, inner)
    ),
    max_leaves=3,
)


@st.composite
def tensors(draw: st.DrawFn, max_elements: int = 40) -> TensorData:
    """Dense constants of every dtype with arbitrary bits."""
    dtype = draw(any_dtype)
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 2), (0,), (2, 0), (1, 3, 1), (max_elements,)]))
    count = int(np.prod(shape))
    if dtype is dtypes.string:
        items = np.empty(count, object)
        items[:] = draw(st.lists(st.one_of(text, st.binary(max_size=3)), min_size=count, max_size=count))
        return ArrayData(items.reshape(shape), dtype)
    if dtype.bits == 6:
        codes = draw(st.lists(st.integers(0, 63), min_size=count, max_size=count))
        return ArrayData(np.array(codes, np.uint8).view(dtype.numpy).reshape(shape), dtype)
    size = dtype.storage_bytes(count)
    return ArrayData(from_raw(draw(st.binary(min_size=size, max_size=size)), dtype, shape), dtype)


sparse_tensors = st.builds(
    lambda values, rows: SparseData(
        ArrayData(np.array(values, np.float32)), ArrayData(np.arange(len(values), dtype=np.int64)), (rows, 7)
    ),
    st.lists(st.floats(width=32), min_size=1, max_size=30),
    st.integers(10, 20),
)
atoms = st.one_of(
    st.integers(), st.floats(), st.floats(width=32), st.booleans(), text, st.binary(max_size=6), all_types, tensors()
)
attribute_values = st.one_of(
    st.recursive(atoms, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5),
    st.builds(AttributeReference, text, st.sampled_from(["float", "ints", "tensor", "type_proto"])),
    sparse_tensors,
)
attributes = st.dictionaries(text, attribute_values, max_size=3)
metadata = st.dictionaries(
    text,
    st.recursive(
        st.one_of(st.none(), st.integers(), text, st.binary(max_size=4), st.floats(width=32)),
        lambda inner: st.one_of(st.lists(inner, max_size=2).map(tuple), st.dictionaries(text, inner, max_size=2)),
        max_leaves=4,
    ),
    max_size=2,
)
infos = st.one_of(st.none(), metadata)
definitions = st.one_of(
    st.sampled_from(["relu", "add", "softmax", "if", "layer_normalization", "ai.onnx.ml.Scaler"]).map(
        lambda name: opdef.find_by_name(name)
    ),
    st.builds(opdef.opaque, text, text),
    st.just(opdef.opaque("", "Relu")),
)


@st.composite
def blocks(draw: st.DrawFn, outer: tuple[Value, ...] = (), depth: int = 2) -> Block:
    """A block that may use the values of `outer`."""
    arguments = draw(st.lists(st.tuples(all_types, names), max_size=3))
    block = Block([type for type, _ in arguments], [name for _, name in arguments])
    visible = [*outer, *block.arguments]
    for _ in range(draw(st.integers(0, 4))):
        op = draw(operations(tuple(visible), depth))
        block._insert(op, None)
        visible += op.results
    returned = draw(st.lists(st.sampled_from(visible), max_size=3)) if visible else []
    block._insert(Operation(opdef.lookup("", "return"), returned), None)
    block.outputs = [BlockOutput(draw(names), draw(st.one_of(st.none(), all_types)), draw(infos)) for _ in returned]
    block.metadata = draw(metadata)
    for argument in block.arguments:
        argument.info = draw(infos)
    return block


@st.composite
def operations(draw: st.DrawFn, visible: tuple[Value, ...], depth: int) -> Operation:
    constant = draw(st.booleans())
    operands = st.lists(st.one_of(st.none(), st.sampled_from(visible)) if visible else st.none(), max_size=3)
    results = draw(st.lists(st.tuples(all_types, names), min_size=int(constant), max_size=1 if constant else 3))
    values: dict[str, Any] = draw(attributes)
    if constant:
        values["value"] = draw(st.one_of(tensors(), sparse_tensors, st.just(AttributeReference("value", "tensor"))))
        if isinstance(values["value"], TensorData) and draw(st.booleans()):
            results = [(values["value"].type, results[0][1])]
    regions = {}
    if depth and draw(st.integers(0, 3)) == 0:
        for name in draw(st.lists(text, max_size=2, unique=True)):
            regions[name] = Region(draw(blocks(visible, depth - 1)))
    op = Operation(
        opdef.lookup("", "Constant") if constant else draw(definitions),
        [] if constant else draw(operands),
        values,
        [type for type, _ in results],
        result_names=[name for _, name in results],
        regions=regions,
        location=draw(locations),
        metadata=draw(metadata),
    )
    for result in op.results:
        result.info = draw(infos)
    return op


@st.composite
def functions(draw: st.DrawFn) -> Function:
    function = Function(FunctionKey(draw(text), draw(text), draw(text)), draw(blocks()))
    function.attributes = draw(
        st.dictionaries(text, st.one_of(st.just(Function.REQUIRED), attribute_values), max_size=2)
    )
    function.opsets = draw(st.dictionaries(text, st.integers(1, 30), max_size=2))
    function.metadata = draw(metadata)
    for argument in function.block.arguments:
        if draw(st.integers(0, 3)) == 0:
            function.defaults[argument] = draw(tensors())
    return function


@st.composite
def modules(draw: st.DrawFn) -> Module:
    module = Module(
        draw(functions()), {"": 17, **draw(st.dictionaries(text, st.integers(1, 30), max_size=2))}, draw(text)
    )
    for function in draw(st.lists(functions(), max_size=1)):
        module.functions[function.key] = function
    module.metadata = draw(metadata)
    return module
