"""Weights are cut out of a model's bytes and put back, and damaged bytes are refused in words."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper
from work import lines_run

from tilewright.graph.data import ArrayData
from tilewright.importers.onnx.stream import write_bytes
from tilewright.importers.onnx.wire import (
    MARKER_BYTES,
    MARKER_KEY,
    MAX_DEPTH,
    WireError,
    mark,
    marker_of,
    read_model,
    split,
    varint,
)

LIGHT_MODELS = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))
# Folders of further models to try, separated as in PATH.
OWN_MODELS = [
    path
    for folder in filter(None, os.environ.get("TILEWRIGHT_TEST_MODELS", "").split(os.pathsep))
    for path in sorted(Path(folder).rglob("*.onnx"))
]


def weight(name: str, elements: int, dtype: type = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.arange(elements, dtype=dtype), name)


def constant(name: str, elements: int) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=weight("", elements))


def rich_model(base: int = 400) -> ModelProto:
    """A model with tensors of base + 1, base + 2 ... elements in every place that onnx.proto has for them."""
    typed = helper.make_tensor("typed_float", TensorProto.FLOAT, [base + 1], np.linspace(0, 1, base + 1))
    double = helper.make_tensor("typed_double", TensorProto.DOUBLE, [base + 2], np.linspace(0, 1, base + 2))
    integers = helper.make_tensor("typed_int", TensorProto.INT64, [base + 3], list(range(base + 3)))
    strings = helper.make_tensor("strings", TensorProto.STRING, [2], [b"a" * 8 * base, b"b"])
    sparse = helper.make_sparse_tensor(weight("sparse", base + 4), weight("", base + 4, np.int64), [9999])
    branch = helper.make_graph([constant("deep", base + 5)], "branch", [], [], [weight("inner", base + 6)])
    condition = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    custom = helper.make_node("Custom", ["x"], ["z"], domain="custom")
    custom.attribute.add(name="many", type=AttributeProto.TENSORS).tensors.extend(
        [weight("a", base + 7), weight("b", 1)]
    )
    custom.attribute.add(name="sparse", type=AttributeProto.SPARSE_TENSOR).sparse_tensor.CopyFrom(sparse)
    custom.attribute.add(name="all", type=AttributeProto.SPARSE_TENSORS).sparse_tensors.append(sparse)
    custom.attribute.add(name="graphs", type=AttributeProto.GRAPHS).graphs.append(branch)
    graph = helper.make_graph(
        [condition, custom, constant("outer", base + 8)],
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [typed, double, integers, strings, weight("small", 5), weight("raw", base + 9)],
        sparse_initializer=[sparse],
        doc_string="d" * 12 * base,
    )
    function = helper.make_function("custom", "F", ["x"], ["f"], [constant("f", base + 10)], [])
    model = helper.make_model(graph, functions=[function], producer_name="test")
    training = model.training_info.add()
    training.algorithm.CopyFrom(branch)
    return model


def contents(buffer: bytes, payloads: list) -> list[ArrayData]:
    return [ArrayData(np.frombuffer(buffer, np.uint8, length, offset)) for offset, length in payloads]


def all_tensors(message: object) -> list[TensorProto]:
    """Every TensorProto below `message`, found through protobuf's own reflection."""
    if isinstance(message, TensorProto):
        return [message]
    found = []
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            items = [value] if hasattr(value, "ListFields") else value
            found += [tensor for item in items for tensor in all_tensors(item)]
    return found


def test_every_large_content_is_cut_wherever_it_stands() -> None:
    model = rich_model()
    data = model.SerializeToString()
    skeleton, payloads = split(data)
    before, after = all_tensors(model), all_tensors(ModelProto.FromString(skeleton))
    assert len(before) == len(after)
    cut = 0
    for old, new in zip(before, after, strict=True):
        marker = marker_of(new)
        fields = {"raw_data": 1, "float_data": 4, "double_data": 8}
        large = [name for name, width in fields.items() if len(getattr(old, name)) * width > 1024]
        if marker is None:
            assert not large
            assert old == new
            continue
        cut += 1
        assert [marker.field] == large
        offset, length = payloads[marker.payload]
        assert data[offset : offset + length] == numpy_helper.to_array(old).tobytes()
        assert (old.dims, old.name, old.data_type) == (new.dims, new.name, new.data_type)
    assert cut == len(payloads) == 20
    assert sum(length for _, length in payloads) + len(skeleton) < len(data) + cut * 100


def test_joining_gives_the_same_bytes() -> None:
    data = rich_model().SerializeToString()
    skeleton, payloads = split(data)
    assert write_bytes(skeleton, contents(data, payloads)) == data


def test_joining_a_parsed_skeleton_gives_an_equal_model() -> None:
    model = rich_model()
    data = model.SerializeToString()
    skeleton, payloads = read_model(data)
    assert ModelProto.FromString(write_bytes(skeleton, contents(data, payloads))) == model


@pytest.mark.parametrize("path", LIGHT_MODELS + OWN_MODELS, ids=lambda path: path.stem)
def test_models_survive(path: Path) -> None:
    data = path.read_bytes()
    skeleton, payloads = split(data)
    assert write_bytes(skeleton, contents(data, payloads)) == data
    assert all(length > 1024 for _, length in payloads)


@pytest.mark.parametrize("with_tensor", [False, True])
def test_millions_of_numbers_in_an_attribute_are_passed_over(with_tensor: bool) -> None:
    """A tree ensemble's nodes are numbers that stand one by one; the tensor behind them is a damaged writer's."""
    count = 500_000
    attribute = AttributeProto(name="nodes_values", floats=[0.5] * count)
    if with_tensor:
        attribute.t.CopyFrom(weight("t", 400))
    model = ModelProto()
    model.graph.node.add(op_type="TreeEnsembleRegressor").attribute.append(attribute)
    buffer = model.SerializeToString()
    split(SMALL)  # reads the descriptors
    found = []
    lines = lines_run(lambda: found.append(split(buffer)))
    [(skeleton, payloads)] = found
    if with_tensor:
        assert [payload.length for payload in payloads] == [1600]
        assert len(ModelProto.FromString(skeleton).graph.node[0].attribute[0].floats) == count
    else:
        assert (skeleton, payloads) == (buffer, [])
        assert lines < count / 100, "they are looked at one by one"


@pytest.mark.parametrize(("elements", "cuts"), [(64, 0), (65, 1)])
def test_threshold_is_exclusive(elements: int, cuts: int) -> None:
    graph = helper.make_graph([], "g", [], [], [weight("w", elements, np.uint8)])
    assert len(split(helper.make_model(graph).SerializeToString(), threshold=64)[1]) == cuts


def test_unknown_fields_and_groups_are_kept() -> None:
    unknown = varint(4000 << 3 | 0) + varint(7) + varint(4001 << 3 | 5) + b"abcd" + varint(4002 << 3 | 1) + b"12345678"
    inner = varint(9 << 3 | 2) + varint(3) + b"xyz" + varint(8 << 3 | 3) + varint(8 << 3 | 4)
    group = varint(4003 << 3 | 3) + inner + varint(4003 << 3 | 4)
    tensor = weight("w", 500).SerializeToString() + unknown + group
    graph = group + varint(5 << 3 | 2) + varint(len(tensor)) + tensor + unknown
    data = unknown + varint(7 << 3 | 2) + varint(len(graph)) + graph + group
    skeleton, payloads = split(data)
    assert [length for _, length in payloads] == [2000]
    assert (skeleton.count(unknown), skeleton.count(group)) == (3, 3)
    assert write_bytes(skeleton, contents(data, payloads)) == data


def test_content_stored_twice_is_left_to_protobuf() -> None:
    # Protobuf's rule for a repeated `raw_data` is that the last one counts.
    tensor = weight("w", 500).SerializeToString() + TensorProto(raw_data=b"z" * 2000).SerializeToString()
    graph = varint(5 << 3 | 2) + varint(len(tensor)) + tensor
    data = varint(7 << 3 | 2) + varint(len(graph)) + graph
    model, payloads = read_model(data)
    assert payloads == []
    assert model.graph.initializer[0].raw_data == b"z" * 2000


def test_merged_tensors_with_two_contents_are_refused() -> None:
    # Two occurrences of an attribute's tensor are one tensor to protobuf, which would then hold two markers.
    tensor = weight("w", 500).SerializeToString()
    attribute = 2 * (varint(5 << 3 | 2) + varint(len(tensor)) + tensor)
    node = varint(5 << 3 | 2) + varint(len(attribute)) + attribute
    graph = varint(1 << 3 | 2) + varint(len(node)) + node
    model, _ = read_model(varint(7 << 3 | 2) + varint(len(graph)) + graph)
    with pytest.raises(WireError, match="more than once"):
        marker_of(model.graph.node[0].attribute[0].t)


def test_external_tensors_keep_their_own_entries() -> None:
    tensor = TensorProto(name="w", data_location=TensorProto.EXTERNAL, raw_data=b"x" * 2000)
    tensor.external_data.add(key="location", value="w.bin")
    model, payloads = read_model(helper.make_model(helper.make_graph([], "g", [], [], [tensor])).SerializeToString())
    assert payloads == []
    assert marker_of(model.graph.initializer[0]) is None
    assert model.graph.initializer[0] == tensor


@pytest.mark.parametrize("first", [False, True])
def test_a_tensor_that_was_external_once_is_cut(first: bool) -> None:
    """onnx leaves `data_location: DEFAULT` behind the content of a tensor that it has read from another file."""
    encoded, location = weight("w", 500).SerializeToString(), varint(14 << 3) + varint(TensorProto.DEFAULT)
    tensor = location + encoded if first else encoded + location
    assert TensorProto.FromString(tensor).HasField("data_location")
    graph = helper.make_graph([], "g", [], []).SerializeToString()
    graph += varint(5 << 3 | 2) + varint(len(tensor)) + tensor
    data = varint(7 << 3 | 2) + varint(len(graph)) + graph
    model, payloads = read_model(data)
    assert marker_of(model.graph.initializer[0]) == (0, "raw_data")
    assert [length for _, length in payloads] == [2000]
    again = ModelProto.FromString(write_bytes(split(data)[0], contents(data, payloads))).graph.initializer[0]
    assert numpy_helper.to_array(again).tolist() == list(range(500))


def test_mark_replaces_content() -> None:
    tensor = weight("w", 500)
    mark(tensor, 3)
    assert not tensor.raw_data
    assert marker_of(tensor) == (3, "raw_data")
    tensor.raw_data = b"again"
    with pytest.raises(WireError, match="more than once"):
        marker_of(tensor)


def test_a_file_cannot_smuggle_markers_in() -> None:
    model = rich_model()
    mark(model.graph.initializer[4], 0)
    with pytest.raises(WireError, match="reserved text"):
        split(model.SerializeToString())
    model = rich_model()
    model.graph.doc_string = MARKER_KEY
    with pytest.raises(WireError, match="reserved text"):
        split(model.SerializeToString())
    with pytest.raises(WireError, match="reserved text"):
        write_bytes(ModelProto(producer_name=MARKER_KEY), [])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"PK\x03\x04\x14\x00\x00\x00\x08\x00", "zip archive"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "HTML"),
        (b"\n  <html>", "HTML"),
        (b'{"error": "not found"}', "JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 435264798\n", "git lfs pull"),
        (b"GGUF\x03\x00\x00\x00", "GGUF"),
        (b"\x80\x02ctorch", "pickle"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "unpack"),
        (b"\x18\x00\x00\x00ORTM\x00\x00\x00\x00", "ORT format"),
        (b"Dear reader,\nthis is no model.\n", "text"),
        (b"\x00" * 100, "no field"),
        (b"\xff" * 100, "longer than ten bytes"),
        (b"\x08", r"ends inside a field$"),
        (b"\x08\x0a", "no graph"),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x0a", "cut short"),
        (b"\x0b" * 500, "nested deeper"),
        (b"\x3b\x44", "not open"),
        (b"\x3a\x02\x0d\x01\x08\x01", "after the message"),
    ],
)
def test_what_is_not_a_model_is_named(data: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words) as caught:
        read_model(data)
    assert 0 <= caught.value.offset <= len(data)
    assert caught.value.code in ("onnx/damaged-file", "onnx/not-a-model")


def test_deep_nesting_is_refused() -> None:
    data = helper.make_graph([constant("c", 500)], "leaf", [], []).SerializeToString()
    for number in (6, 5, 1) * MAX_DEPTH:  # graph in attribute in node in graph
        data = varint(number << 3 | 2) + varint(len(data)) + data
    with pytest.raises(WireError, match=f"nested deeper than {MAX_DEPTH}"):
        read_model(varint(7 << 3 | 2) + varint(len(data)) + data)


def test_damage_inside_a_small_message_is_located() -> None:
    model = rich_model()
    model.graph.node.add(op_type="Relu", input=["x"], output=["y"])
    data = bytearray(model.SerializeToString())
    place = data.index(b"Relu") - 1  # the length of this string
    data[place] = 0x7F
    with pytest.raises(WireError, match="after the message") as caught:
        read_model(bytes(data))
    assert abs(caught.value.offset - place) <= 2


def test_float_content_of_odd_length_is_refused() -> None:
    tensor = varint(4 << 3 | 2) + varint(2001) + b"x" * 2001
    graph = varint(5 << 3 | 2) + varint(len(tensor)) + tensor
    with pytest.raises(WireError, match="not a multiple of 4"):
        split(varint(7 << 3 | 2) + varint(len(graph)) + graph)


# Little content, so that random damage hits the structure.
SMALL = rich_model(10).SerializeToString()


def check_like_protobuf(data: bytes) -> None:
    """`read_model` refuses `data` with a WireError, or agrees with protobuf on what it says."""
    try:
        model, payloads = read_model(data, threshold=30)
    except WireError as error:
        assert 0 <= error.offset <= len(data)  # noqa: PT017 (some inputs are refused, others read)
        return
    for tensor in all_tensors(model):
        try:
            marker = marker_of(tensor)
        except WireError:
            continue
        assert marker is None or marker.payload < len(payloads)
    skeleton, _ = split(data, threshold=30)
    joined = write_bytes(skeleton, contents(data, payloads))
    try:
        expected = ModelProto.FromString(data)
    except DecodeError:
        pytest.fail("protobuf refuses what read_model accepted")
    assert ModelProto.FromString(joined).SerializeToString() == expected.SerializeToString()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, len(SMALL)), st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), max_size=4))
@example(len(SMALL), [])
def test_damaged_models_are_refused_or_read(end: int, changes: list[tuple[int, int]]) -> None:
    data = bytearray(SMALL)
    for place, value in changes:
        data[place] = value
    check_like_protobuf(bytes(data[:end]))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_or_read(data: bytes) -> None:
    check_like_protobuf(data)
    check_like_protobuf(varint(7 << 3 | 2) + varint(len(data)) + data)


def test_headers_are_fuzzed_densely() -> None:
    """Flip each bit of a model that is all structure and hardly any content."""
    graph = helper.make_graph([constant("c", 30)], "g", [], [], [weight("w", 40)])
    data = helper.make_model(graph).SerializeToString()
    structure = [i for i in range(len(data)) if i < 60 or i % 16 == 0]
    for place in structure:
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            check_like_protobuf(bytes(damaged))


def test_splitting_is_linear() -> None:
    def work(layers: int) -> int:
        model = ModelProto(ir_version=10)
        for index in range(10 * layers):
            model.graph.node.add(
                op_type="Add", name=f"/layer.{index}/Add", input=[f"v{index}", "w"], output=[f"v{index + 1}"]
            )
        for index in range(layers):
            model.graph.initializer.add(name=f"w{index}", data_type=1, dims=[600], raw_data=bytes(2400))
        data = model.SerializeToString()
        found = []
        lines = lines_run(lambda: found.append(split(data)))
        [(skeleton, payloads)] = found
        assert len(payloads) == skeleton.count(MARKER_BYTES) == layers
        return lines

    split(SMALL)  # reads the descriptors
    assert work(2_000) < 4.2 * work(500)
