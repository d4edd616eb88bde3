"""Small models that together use everything an ONNX file can say; each is a function that builds one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper, parser

F = TensorProto.FLOAT
SAMPLES: dict[str, Callable[[], ModelProto]] = {}


def sample(build: Callable[[], ModelProto]) -> Callable[[], ModelProto]:
    SAMPLES[build.__name__] = build
    return build


def info(name: str, shape: Sequence[int | str | None] = (2,), kind: int = F) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    opset: int = 21,
    ir_version: int = 10,
    opsets: dict[str, int] | None = None,
    **graph: object,
) -> ModelProto:
    proto = helper.make_graph(nodes, "g", inputs, outputs, **graph)
    imports = [helper.make_opsetid(domain, v) for domain, v in ({"": opset} | (opsets or {})).items()]
    return helper.make_model(proto, opset_imports=imports, ir_version=ir_version)


def text(body: str, ir_version: int = 10, opset: int = 21, more: str = "") -> ModelProto:
    return parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}{more}]>\n{body}')


# ---- facts beside the computation ------------------------------------------------------------------------------------


@sample
def every_fact() -> ModelProto:
    """Doc strings, properties, names and denotations wherever they can stand."""
    weight = numpy_helper.from_array(np.arange(2, dtype=np.float32), "w")
    weight.doc_string = "a weight"
    weight.metadata_props.add(key="origin", value="checkpoint")
    node = helper.make_node("Add", ["x", "w"], ["y"], name="add", doc_string="adds")
    node.metadata_props.add(key="stack", value="net.py:3")
    softmax = helper.make_node("Softmax", ["y"], ["z"], axis=-1)
    softmax.attribute[0].doc_string = "the last axis"
    proto = model([node, softmax], [info("x", ["n"])], [info("z", ["n"])], initializer=[weight])
    proto.graph.input[0].doc_string = "the input"
    proto.graph.input[0].type.denotation = "TENSOR"
    proto.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    proto.graph.input[0].metadata_props.add(key="range", value="0..1")
    proto.graph.output[0].doc_string = "the output"
    proto.graph.value_info.append(info("y", ["n"]))
    proto.graph.value_info[0].metadata_props.add(key="scale", value="0.1")
    proto.graph.doc_string = "a graph"
    proto.graph.metadata_props.add(key="a", value="b")
    proto.producer_name, proto.producer_version, proto.domain = "hand", "1.0", "org.example"
    proto.model_version, proto.doc_string = 7, "a model\nwith lines"
    helper.set_model_props(proto, {"labels": "cat,dog", "empty": ""})
    return proto


@sample
def what_is_not_modelled() -> ModelProto:
    """Training info with a large weight, quantization annotations, device configurations."""
    proto = text("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }", ir_version=14, opset=28)
    algorithm = proto.training_info.add().algorithm
    algorithm.name = "step"
    algorithm.initializer.append(numpy_helper.from_array(np.arange(3000, dtype=np.float32), "momentum"))
    proto.training_info[0].update_binding.add(key="w", value="w_new")
    annotation = proto.graph.quantization_annotation.add(tensor_name="y")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    proto.configuration.add(name="two", num_devices=2)
    proto.graph.node[0].device_configurations.add(configuration_id="two")
    return proto


@sample
def fields_of_the_future() -> ModelProto:
    """Fields that today's onnx does not know, in the model, the graph, a node and a value."""
    proto = text("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    unknown = bytes([0xF2, 0x3F, 3]) + b"new"  # field 1022, length-delimited
    for message in (proto, proto.graph, proto.graph.node[0], proto.graph.input[0]):
        message.MergeFromString(unknown)
    return proto


@sample
def disordered_value_info() -> ModelProto:
    """Entries out of order, for inputs, outputs, initializers, twice, and for tensors that do not exist."""
    proto = text(
        "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Add(x, w) b = Neg(a) c = Neg(b) y = Neg(c) }"
    )
    for name in ("c", "gone", "a", "x", "y", "w", "b", "a", "also_gone"):
        proto.graph.value_info.append(info(name))
    return proto


@sample
def odd_types() -> ModelProto:
    """Dims called "?" or "", negative, without value; a tensor without shape; an output without a type."""
    proto = model(
        [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
        [info("x", ["?", "n", -1, None])],
        [info("y", ["n", "n", "n*2", 3])],
    )
    proto.graph.value_info.append(helper.make_tensor_value_info("a", F, None))
    proto.graph.input[0].type.tensor_type.shape.dim.add().dim_param = ""
    proto.graph.output[0].type.tensor_type.shape.dim.add()
    return proto


@sample
def odd_names() -> ModelProto:
    """Names and dims that would need quoting elsewhere."""
    dims = ['a "b" c', "é", "n'1", "2n", "-", "n, m", "floordiv(n, 2)", "%0", "}", "\\n", "f32[2]"]
    nodes = [
        helper.make_node("Neg", ['x y"'], ["%0"], name="a\nb"),
        helper.make_node("Relu", ["%0"], ["é/→"], name='"'),
    ]
    proto = model(nodes, [info('x y"', dims)], [info("é/→", dims)])
    proto.graph.name = "g (x) {"
    proto.graph.doc_string = 'two\nlines, a tab\t, "quotes", \\ and \x00 nothing'
    proto.graph.metadata_props.add(key="a b", value="<>")
    return proto


# ---- constants -------------------------------------------------------------------------------------------------------


@sample
def overridable_initializers() -> ModelProto:
    """From IR version 4 on: inputs with defaults, mixed with other initializers, in an order of their own."""
    return model(
        [helper.make_node("Sum", ["x", "a", "b", "c"], ["y"])],
        [info("b"), info("x"), info("a")],
        [info("y")],
        initializer=[numpy_helper.from_array(np.ones(2, np.float32) * i, name) for i, name in enumerate("acb")],
    )


@sample
def initializers_as_inputs() -> ModelProto:
    """Before IR version 4 every initializer is an input, too; one with a doc string and a named dim."""
    proto = model(
        [helper.make_node("Sum", ["x", "a", "b"], ["y"])],
        [info("b"), info("x"), info("a", ["k"])],
        [info("y")],
        initializer=[numpy_helper.from_array(np.ones(2, np.float32), name) for name in "ab"],
        opset=8,
        ir_version=3,
    )
    proto.graph.input[2].doc_string = "a constant"
    return proto


@sample
def constant_nodes() -> ModelProto:
    """The eight spellings of a Constant node."""
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("values", F, [2], [1.0, 2.0]), helper.make_tensor("at", TensorProto.INT64, [2], [1, 4]), [6]
    )
    spellings = {
        "value": numpy_helper.from_array(np.ones((2, 3), np.float32), "named"),
        "value_float": 1.5,
        "value_floats": [1.0, 2.0],
        "value_int": 3,
        "value_ints": [1, 2, 3],
        "value_string": "text",
        "value_strings": ["a", b"\xff", ""],
        "sparse_value": sparse,
    }
    nodes = [helper.make_node("Constant", [], [name], name=f"c_{name}", **{name: v}) for name, v in spellings.items()]
    kinds = [F, F, F, TensorProto.INT64, TensorProto.INT64, TensorProto.STRING, TensorProto.STRING, F]
    shapes: list[list[int]] = [[2, 3], [], [2], [], [3], [], [3], [6]]
    outputs = [info(name, shape, kind) for name, shape, kind in zip(spellings, shapes, kinds, strict=True)]
    return model(nodes, [], outputs)


@sample
def sparse_initializers() -> ModelProto:
    coordinates = helper.make_sparse_tensor(
        helper.make_tensor("w", F, [2], [1.0, 2.0]),
        helper.make_tensor("w_at", TensorProto.INT64, [2, 2], [0, 1, 1, 2]),
        [2, 3],
    )
    return model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [info("x", [4, 2])],
        [info("y", [4, 3])],
        sparse_initializer=[coordinates],
    )


@sample
def every_dtype() -> ModelProto:
    """An initializer of each element type, raw and in its typed field."""
    outputs, tensors = [], []
    for kind in sorted(TensorProto.DataType.values()):
        name = TensorProto.DataType.Name(kind).lower()
        if kind in (TensorProto.UNDEFINED, TensorProto.STRING):
            continue
        values = np.arange(5).astype(helper.tensor_dtype_to_np_dtype(kind))
        plain = values.tolist() if values.dtype.kind in "fciub" else values.astype(np.float32).tolist()
        typed = helper.make_tensor(f"{name}_typed", kind, [5], plain)
        raw = numpy_helper.from_array(values, f"{name}_raw")
        tensors += [typed, raw]
        outputs += [info(tensor.name, [5], kind) for tensor in (typed, raw)]
    words = TensorProto(name="words", data_type=TensorProto.STRING, dims=[2], string_data=["é".encode(), b"\xfe"])
    return model([], [], [*outputs, info("words", [2], TensorProto.STRING)], 28, 14, initializer=[*tensors, words])


@sample
def large_weights() -> ModelProto:
    """Contents that are cut out of the file: raw, typed, in a Constant node, in an attribute, in a subgraph."""
    numbers = np.arange(2048, dtype=np.float32)
    raw, twin = numpy_helper.from_array(numbers, "raw"), numpy_helper.from_array(numbers, "twin")
    typed = helper.make_tensor("typed", F, [2048], numbers[::-1].tolist())
    doubles = helper.make_tensor("doubles", TensorProto.DOUBLE, [2048], numbers.astype(float).tolist())
    inner = numpy_helper.from_array(numbers * 2, "inner")
    branch = helper.make_graph(
        [helper.make_node("Add", ["x", "inner"], ["r"])], "b", [], [info("r", [2048])], initializer=[inner]
    )
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["r"])], "b", [], [info("r", [2048])])
    nodes = [
        helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(numbers + 1)),
        helper.make_node("Cast", ["doubles"], ["d"], to=F),
        helper.make_node("Sum", ["x", "raw", "typed", "twin", "k", "d"], ["s"]),
        helper.make_node("If", ["c"], ["t"], then_branch=branch, else_branch=other),
        helper.make_node("Add", ["s", "t"], ["y"]),
    ]
    inputs = [info("x", [2048]), info("c", [], TensorProto.BOOL)]
    return model(nodes, inputs, [info("y", [2048])], initializer=[raw, typed, doubles, twin])


# ---- structure -------------------------------------------------------------------------------------------------------


@sample
def nested_subgraphs() -> ModelProto:
    """Captures from two levels up, siblings that use the same names, a body that returns its input and a capture."""
    return text("""
    g (float[2] x, bool c, int64 n) => (float[2] y, float[?, 2] ys) {
      k = Neg (x)
      y, ys = Loop (n, c, x) <body = b (int64 i, bool go, float[2] a) => (bool go, float[2] z, float[2] z2) {
        z = If (go) <then_branch = t () => (float[2] r) { q = Add (a, k)  r = If (c) <
            then_branch = tt () => (float[2] r1) { r1 = Add (q, k) },
            else_branch = te () => (float[2] r2) { r2 = Sub (a, x) }> },
          else_branch = e () => (float[2] r) { q = Mul (a, k)  r = Relu (q) }>
        z2 = Identity (z)
      }>
    }""")


@sample
def scan_and_sequences() -> ModelProto:
    return text("""
    g (float[3, 2] xs, float[2] s0) => (float[2] s, float[3, 2] ys, seq(float[2]) out) {
      s, ys = Scan (s0, xs) <num_scan_inputs = 1, body = b (float[2] s_in, float[2] x) => (float[2] s_out, float[2] y) {
        s_out = Add (s_in, x)
        y = Identity (s_out)
      }>
      empty = SequenceEmpty ()
      one = SequenceInsert (empty, s)
      maybe = Optional (s)
      got = OptionalGetElement (maybe)
      out = SequenceInsert (one, got)
    }""")


@sample
def untyped_body() -> ModelProto:
    """A body whose inputs and outputs say nothing about their types."""
    proto = text("""
    g (float[2] x, bool c, int64 n) => (float[2] y) {
      y = Loop (n, c, x) <body = b (int64 i, bool go, float[2] a) => (bool go2, float[2] z) {
        go2 = Identity (go)
        z = Neg (a)
      }>
    }""")
    body = proto.graph.node[0].attribute[0].g
    for value in (*body.input, *body.output):
        value.ClearField("type")
    return proto


@sample
def interface_cases() -> ModelProto:
    """Outputs that are inputs, constants, listed twice, or used inside as well; unused results and inputs left out."""
    proto = text("""
    g (float[2, 4] x, float[2] unused) => (float[2, 4] x, float[2] w, float[2, 4] a, float[2, 4] a, float[2, 4] b)
    <float[2] w = {1, 2}, float[2] nobody = {3, 4}> {
      a = Clip (x)
      b = Neg (a)
      v, i = TopK (b, k)
      p, q = Split <num_outputs = 2, axis = 1> (x)
    }""")
    proto.graph.initializer.append(numpy_helper.from_array(np.array([2]), "k"))
    proto.graph.node[0].input.extend(["", "top"])
    proto.graph.initializer.append(numpy_helper.from_array(np.array(6, np.float32), "top"))
    proto.graph.node[2].output[0] = ""
    return proto


@sample
def absent_optional_operands() -> ModelProto:
    """Empty names in the middle and at the end of inputs and outputs."""
    nodes = [
        helper.make_node("Resize", ["x", "", "scales", ""], ["y"], mode="nearest"),
        helper.make_node("LSTM", ["s", "w", "r", "", "", "", "", ""], ["", "h", ""], hidden_size=2),
    ]
    arrays = {"scales": np.array([1, 1, 2, 2], np.float32), "w": np.ones((1, 8, 3)), "r": np.ones((1, 8, 2))}
    return model(
        nodes,
        [info("x", [1, 1, 2, 2]), info("s", [4, 1, 3])],
        [info("y", [1, 1, 4, 4]), info("h", [1, 1, 2])],
        initializer=[numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()],
    )


@sample
def repeated_node_names() -> ModelProto:
    proto = text("g (float[2] x) => (float[2] y) { a = Neg(x) b = Neg(a) c = Neg(b) y = Neg(c) }")
    for node, name in zip(proto.graph.node, ["same", "same", "", "other"], strict=True):
        node.name = name
    return proto


# ---- functions and domains -------------------------------------------------------------------------------------------


@sample
def model_local_functions() -> ModelProto:
    """Nested calls, attribute references with and without default, a body with control flow, an unused import."""
    return text(
        """
    g (float[2] x, bool c) => (float[2] y) {
      a = local.Scaled <by = 3.0> (x)
      b = local.Scaled (a)
      d = local.Twice (b)
      y = local.Either (c, d)
    }
    <domain: "local", opset_import: ["" : 21], doc_string: "multiplies">
    Scaled <by: float = 2.0> (v) => (r) {
      k = Constant <value_float: float = @by> ()
      r = Mul (v, k)
    }
    <domain: "local", opset_import: ["" : 21, "local" : 1]>
    Twice (v) => (r) { h = local.Scaled <by = 1.0> (v) r = Add (h, h) }
    <domain: "local", opset_import: ["" : 21]>
    Either (p, v) => (r) {
      r = If (p) <then_branch = t () => (u) { u = Neg (v) }, else_branch = e () => (u) { u = Relu (v) }>
    }
    <domain: "unused", opset_import: ["" : 21]>
    Softened <axis, alpha> (v) => (r) {
      s = Softmax <axis: int = @axis> (v)
      r = LeakyRelu <alpha: float = @alpha> (s)
    }""",
        more=', "local" : 1, "unused" : 4, "ai.onnx.ml" : 3',
    )


@sample
def overloaded_functions() -> ModelProto:
    """Two bodies under one name, with value_info and properties in them."""
    proto = text("g (float[2] x) => (float[2] y) { a = local.F (x) y = local.F (a) }", more=', "local" : 1')
    for overload, op_type in (("neg", "Neg"), ("abs", "Abs")):
        nodes = [helper.make_node(op_type, ["v"], ["h"]), helper.make_node("Relu", ["h"], ["r"])]
        function = helper.make_function(
            "local", "F", ["v"], ["r"], nodes, [helper.make_opsetid("", 21)], overload=overload,
            value_info=[info("h"), info("v"), info("nowhere")],
        )  # fmt: skip
        function.metadata_props.add(key="kind", value=overload)
        proto.functions.append(function)
    for node, overload in zip(proto.graph.node, ("neg", "abs"), strict=True):
        node.overload = overload
    return proto


@sample
def functions_of_another_opset() -> ModelProto:
    """A body written for an older opset than the graph, in forms that have changed since."""
    return text(
        """
    g (float[2, 3] x) => (float[2, 1] y) { y = local.Old (x) }
    <domain: "local", opset_import: ["" : 11]>
    Old <axes> (v) => (r) {
      s = Squeeze <axes = [0]> (u)
      u = Unsqueeze <axes = [0]> (v)
      r = ReduceSum <axes: ints = @axes> (u)
    }""".replace("      s = Squeeze <axes = [0]> (u)\n", ""),
        more=', "local" : 1',
    )


@sample
def unknown_domain() -> ModelProto:
    """Attributes of every kind on an operator that nobody knows, among them graphs and lists without elements."""
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["r"])], "inner", [], [info("r")])
    tensor = numpy_helper.from_array(np.arange(600, dtype=np.float32), "t")
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("v", F, [1], [1.0]), helper.make_tensor("i", TensorProto.INT64, [1], [1]), [3]
    )
    kind = helper.make_tensor_type_proto(F, [1, "n", None])
    kind.denotation = "IMAGE"
    node = helper.make_node(
        "Thing", ["x", ""], ["y", ""], domain="com.example", f=1.0, i=2, s="text", raw=b"\xff", t=tensor
    )
    for name, value in {
        "fs": [1.0, 2.0], "is": [1, 2], "ss": ["a", "b"], "ts": [tensor, tensor], "g": graph, "gs": [graph, graph],
        "sp": sparse, "sps": [sparse, sparse], "tp": kind, "tps": [kind, kind],
    }.items():  # fmt: skip
        node.attribute.append(helper.make_attribute(name, value))
    for name in ("FLOATS", "INTS", "STRINGS", "TENSORS", "GRAPHS", "SPARSE_TENSORS", "TYPE_PROTOS"):
        node.attribute.append(AttributeProto(name=f"no_{name.lower()}", type=name))
    after = helper.make_node("Neg", ["y"], ["z"])
    return model([node, after], [info("x")], [info("z", None)], opsets={"com.example": 3})


@sample
def long_default_domain() -> ModelProto:
    """The default domain under its long name."""
    proto = text("g (float[2] x) => (float[2] y) { a = Neg(x) y = Neg(a) }")
    proto.opset_import[0].domain = "ai.onnx"
    proto.graph.node[0].domain = "ai.onnx"
    return proto


@sample
def maps_and_classifiers() -> ModelProto:
    nodes = [
        helper.make_node("LinearClassifier", ["x"], ["l", "p"], domain="ai.onnx.ml", coefficients=[1.0, 2.0],
                         classlabels_ints=[0, 1]),
        helper.make_node("ZipMap", ["p"], ["m"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]),
    ]  # fmt: skip
    kind = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(F, None))
    )
    return model(
        nodes, [info("x", ["n", 1])], [info("l", ["n"], TensorProto.INT64), helper.make_value_info("m", kind)],
        opsets={"ai.onnx.ml": 3},
    )  # fmt: skip


# ---- old files -------------------------------------------------------------------------------------------------------


@sample
def first_ir_version() -> ModelProto:
    """IR version 1: no opset imports, attributes without a type."""
    proto = model(
        [helper.make_node("Concat", ["x", "x"], ["c"], axis=0), helper.make_node("LeakyRelu", ["c"], ["y"], alpha=0.5)],
        [info("x")],
        [info("y", [4])],
    )
    proto.ir_version = 1
    del proto.opset_import[:]
    for node in proto.graph.node:
        for attribute in node.attribute:
            attribute.ClearField("type")
    return proto


@sample
def old_forms() -> ModelProto:
    """Operators whose attributes became inputs, or whose old meaning has no single operator today."""
    return text(
        """
    g (float[2, 3, 4] x, float[3] b) => (float[2, 3, 4] y, float[2, 12] f) {
      u = Unsqueeze <axes = [0]> (x)
      s = Squeeze <axes = [0]> (u)
      p = Pad <pads = [0, 0, 0, 0, 0, 0], mode = "constant"> (s)
      c = Clip <max = 6.0, min = 0.0> (p)
      t = Slice <axes = [2], starts = [0], ends = [4]> (c)
      a = Add <axis = 1, broadcast = 1> (t, b)
      y = Softmax <axis = 1> (a)
      f = Reshape <shape = [2, 12]> (y)
    }""".replace("f = Reshape <shape = [2, 12]> (y)", "f = Flatten <axis = 1> (y)"),
        ir_version=3,
        opset=6,
    )


def single_operator(opset: int) -> ModelProto:
    """A model of any opset from 1 on."""
    return model(
        [helper.make_node("Tanh", ["x"], ["t"], name="t"), helper.make_node("Concat", ["t", "x"], ["y"], axis=0)],
        [info("x")],
        [info("y", [4])],
        opset=opset,
        ir_version=max(helper.find_min_ir_version_for([helper.make_opsetid("", opset)], ignore_unknown=True), 3),
    )


for _opset in range(1, onnx.defs.onnx_opset_version() + 1):
    SAMPLES[f"opset_{_opset}"] = lambda opset=_opset: single_operator(opset)
