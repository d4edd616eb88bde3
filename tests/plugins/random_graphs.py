"""Random ONNX graphs that ONNX Runtime runs, with their inputs; built from `onnx.helper` alone.

A graph grows node by node. ONNX Runtime runs each candidate node by itself on the values known so far, so a candidate
that fits no operand is dropped, and the generator needs to know no shape rules.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

CODES = {
    np.dtype(name): helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in ("float32", "float64", "int64", "bool")
}
# Sizes of the symbolic dims in the run that shapes the graph, and in later ones.
SIZES = {"n": 3, "m": 2}
OTHER_SIZES = ({"n": 1, "m": 1}, {"n": 0, "m": 2}, {"n": 5, "m": 3})
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e-40]
TAME = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0]
MAX_ELEMENTS, MAX_RANK = 4000, 6

UNARY = [
    "Neg", "Abs", "Relu", "Exp", "Sqrt", "Sigmoid", "Tanh", "Floor",
    "Round", "Sign", "Erf", "LeakyRelu", "HardSigmoid", "Identity", "IsNaN", "Softplus",
]  # fmt: skip
BINARY = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Add", "Mul", "Equal", "Less"]
REDUCTIONS = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceProd"]


def session(model: ModelProto | bytes) -> Any:
    """An ONNX Runtime session without optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    content = model if isinstance(model, bytes) else model.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


class RandomGraph:
    """A graph in the making: `model()` grows and returns it, `feeds()` makes inputs for it."""

    def __init__(self, seed: int, special: bool) -> None:
        self.random = random.Random(seed)
        self.numpy = np.random.default_rng(seed)
        self.opset = self.random.choice([13, 17, 18, 21])
        self.special = special
        self.values: dict[str, np.ndarray] = {}
        self.dims: dict[str, list[int | str]] = {}
        self.weights: dict[str, np.ndarray] = {}
        self.nodes: list[NodeProto] = []
        self.nested = False

    # ---- values --------------------------------------------------------------------------------------------------

    def name(self, prefix: str) -> str:
        return f"{prefix}{len(self.values) + len(self.nodes)}_{self.random.randrange(10**6)}"

    def array(self, dtype: Any, shape: Iterable[int]) -> np.ndarray:
        dtype, shape = np.dtype(dtype), tuple(shape)
        if dtype.kind == "b":
            return np.asarray(self.numpy.random(shape) < 0.5)
        if dtype.kind == "i":
            return np.asarray(self.numpy.integers(-4, 6, shape)).astype(dtype)
        found = self.numpy.standard_normal(shape)
        if self.random.random() < 0.4:
            pool = SPECIAL if self.special else TAME
            found = np.where(self.numpy.random(shape) < 0.3, self.numpy.choice(pool, shape), found)
        return np.asarray(found).astype(dtype)

    def input(self) -> None:
        rank = self.random.choice([0, 1, 2, 2, 3, 3, 4])
        dims: list[int | str] = [self.random.choice(["n", "m", 1, 2, 3, 4]) for _ in range(rank)]
        name = self.name("x")
        self.dims[name] = dims
        dtype = self.random.choice(["float32"] * 5 + ["int64", "bool", "float64"])
        self.values[name] = self.array(dtype, [SIZES[dim] if isinstance(dim, str) else dim for dim in dims])

    def constant(self, value: Any) -> str:
        name, value = self.name("c"), np.asarray(value)
        self.values[name] = value
        if self.random.random() < 0.2:
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value)))
        else:
            self.weights[name] = value
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def pick(self, kinds: str = "f", fits: Callable[[np.ndarray], bool] = lambda value: True) -> str:
        """The name of a computed value; raises IndexError if there is none."""
        made = [
            name for name, value in self.values.items()
            if name[0] != "c" and value.dtype.kind in kinds and fits(value)
        ]  # fmt: skip
        return self.random.choice(made[-5:] if self.random.random() < 0.6 else made)

    def other(self, name: str) -> str:
        """Something to combine with a value: often another one of the same shape, a neutral constant or a row."""
        value = self.values[name]
        same = [key for key, item in self.values.items() if item.dtype == value.dtype and item.shape == value.shape]
        if self.random.random() < 0.4:
            return self.random.choice(same)
        shape = self.random.choice([(), (1,), value.shape[-1:], value.shape, (1,) * value.ndim])
        if self.random.random() < 0.5:
            return self.constant(np.full(shape, self.random.choice([0, 1, 2, -1])).astype(value.dtype))
        return self.constant(self.array(value.dtype, shape))

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def add(self, op_type: str, inputs: list[str], count: int = 1, **attributes: Any) -> str | None:
        """The first result of a new node; None, and no node, where ONNX Runtime does not take it."""
        results = [self.name("v") for _ in range(count)]
        node = helper.make_node(op_type, inputs, results, **attributes)
        used = [name for name in self.values if name in names_read([node])]
        try:
            found = session(self.proto([node], used, [ValueInfoProto(name=name) for name in results])).run(
                None, {name: self.values[name] for name in used}
            )
        except Exception:  # ONNX Runtime raises kinds of its own
            return None
        if any(item.dtype not in CODES or item.size > MAX_ELEMENTS or item.ndim > MAX_RANK for item in found):
            return None
        self.nodes.append(node)
        self.values.update(zip(results, found, strict=True))
        return results[0]

    def proto(self, nodes: list[NodeProto], inputs: Iterable[str], outputs: list[ValueInfoProto]) -> ModelProto:
        declared = [self.declared(name, self.dims.get(name, [*self.values[name].shape])) for name in inputs]
        weights = [
            numpy_helper.from_array(value, name) for name, value in self.weights.items() if nodes is self.nodes
        ]  # fmt: skip
        graph = helper.make_graph(nodes, "random", declared, outputs, weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def declared(self, name: str, dims: list[Any] | None) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, CODES[self.values[name].dtype], dims)

    def with_axes(self, since: int, axes: list[int], inputs: list[str], **attributes: Any) -> dict[str, Any]:
        """Arguments of `add` for axes that became an input at opset `since`."""
        if self.opset >= since:
            return {"inputs": [*inputs, self.ints(*axes)], **attributes}
        return {"inputs": inputs, "axes": axes, **attributes}

    def step(self) -> None:
        with suppress(IndexError):  # no value fits
            self.random.choice(STEPS)(self)

    def model(self) -> ModelProto:
        for _ in range(self.random.choice([1, 2, 3])):
            self.input()
        for _ in range(self.random.choice([4, 8, 12, 16])):
            self.step()
        if not any(node.op_type != "Constant" for node in self.nodes):
            self.add("Identity", [next(iter(self.dims))])
        read = names_read(self.nodes)
        made = [name for node in self.nodes if node.op_type != "Constant" for name in node.output]
        outputs = [name for name in made if name not in read][-3:]
        # Now and then an output in the middle, or of a value that nothing computes.
        outputs += [name for name in self.random.sample(made, 1) if name not in outputs]
        declared = [self.declared(name, [None] * self.values[name].ndim) for name in outputs]
        found = self.proto(self.nodes, self.dims, declared)
        return onnx.shape_inference.infer_shapes(found) if self.random.random() < 0.3 else found

    def feeds(self) -> list[dict[str, np.ndarray]]:
        """Inputs of the first sizes, and of others if dims are open."""
        found = [{name: self.values[name] for name in self.dims}]
        if any(isinstance(dim, str) for dims in self.dims.values() for dim in dims):
            for sizes in OTHER_SIZES:
                shapes = {
                    name: [sizes[dim] if isinstance(dim, str) else dim for dim in dims]
                    for name, dims in self.dims.items()
                }
                found.append({name: self.array(self.values[name].dtype, shape) for name, shape in shapes.items()})
        return found

    def body(self, values: dict[str, np.ndarray], steps: int) -> tuple[list[NodeProto], list[TensorProto], list[str]]:
        """Nodes and weights of a nested graph that may read `values` and all outer ones; names of what it computes."""
        outer, nodes, weights = dict(self.values), self.nodes, self.weights
        self.nodes, self.weights, self.nested = [], {}, True
        self.values.update(values)
        for _ in range(steps):
            self.step()
        made = [name for node in self.nodes if node.op_type != "Constant" for name in node.output]
        found = self.nodes, [numpy_helper.from_array(item, name) for name, item in self.weights.items()], made
        self.inner = dict(self.values)
        self.values, self.nodes, self.weights, self.nested = outer, nodes, weights, False
        return found


def names_read(nodes: Iterable[NodeProto]) -> set[str]:
    """Names that nodes, or the graphs in them, read."""
    found: set[str] = set()
    for node in nodes:
        found.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= names_read(attribute.g.node) | {item.name for item in attribute.g.output}
    return found


# ---- what a step may add ---------------------------------------------------------------------------------------------


def elementwise(g: RandomGraph) -> None:
    if g.random.random() < 0.4:
        g.add(g.random.choice(UNARY), [g.pick()])
        return
    op_type = g.random.choice(BINARY)
    left = g.pick("f" if op_type == "Div" else "fi")
    operands = [left, g.other(left)]
    g.random.shuffle(operands)
    g.add(op_type, operands)


def choose(g: RandomGraph) -> None:
    value = g.pick("fib")
    condition = g.constant(g.random.random() < 0.5) if g.random.random() < 0.3 else g.pick("b")
    g.add("Where", [condition, value, g.other(value)])


def cast(g: RandomGraph) -> None:
    wide = g.add("Cast", [g.pick("fib", lambda value: value.dtype != np.float64)], to=TensorProto.DOUBLE)
    if wide is not None:
        g.add("Cast", [wide], to=g.random.choice([TensorProto.FLOAT, TensorProto.BOOL, TensorProto.DOUBLE]))


def reshape(g: RandomGraph) -> None:
    name = g.pick("fib")
    shape = list(g.values[name].shape)
    target = g.random.choice([[-1], [*shape, 1], [0] * min(len(shape), 1) + [-1], [-1, *shape[1:]], shape[::-1]])
    g.add("Reshape", [name, g.ints(*target)])


def transpose(g: RandomGraph) -> None:
    name = g.pick("fib", lambda value: value.ndim > 0)
    perm = g.random.sample(range(g.values[name].ndim), g.values[name].ndim)
    first = g.add("Transpose", [name], perm=perm)
    middle = g.add("Relu", [first]) if first is not None and g.random.random() < 0.5 else first
    if middle is not None and g.random.random() < 0.6:
        g.add("Transpose", [middle], perm=[perm.index(axis) for axis in range(len(perm))])


def squeeze(g: RandomGraph) -> None:
    name = g.pick("fib")
    first = g.add("Unsqueeze", **g.with_axes(13, [g.random.choice([0, -1])], [name]))
    if first is not None and g.random.random() < 0.5:
        g.add("Squeeze", **g.with_axes(13, [g.random.choice([0, -1])], [first]))


def slices(g: RandomGraph) -> None:
    name = g.pick("fib", lambda value: value.ndim > 0)
    for _ in range(g.random.choice([1, 2])):
        axis = g.random.randrange(g.values[name].ndim)
        start, end, step = g.random.choice(
            [(0, 2**63 - 1, 1), (1, 9, 1), (-2, 2**31, 1), (0, -1, 1), (-1, -(2**63), -1), (-9, -9, -2), (0, 9, 2)]
        )
        found = g.add("Slice", [name, *map(g.ints, (start, end, axis, step))])
        if found is None:
            return
        name = found


def join(g: RandomGraph) -> None:
    name = g.pick("fib", lambda value: value.ndim > 0)
    axis = g.random.randrange(g.values[name].ndim)
    count = g.random.choice([1, 2, 2, 3])
    parts = g.add("Split", [name], count, axis=axis, **({"num_outputs": count} if g.opset >= 18 else {}))
    if parts is not None:
        names = list(g.nodes[-1].output)
        g.add("Concat", g.random.choice([names, names[::-1], [*names, name]]), axis=axis)


def gather(g: RandomGraph) -> None:
    name = g.pick("fib", lambda value: value.ndim > 0 and value.size > 0)
    axis = g.random.randrange(g.values[name].ndim)
    g.add("Gather", [name, g.constant(np.array(g.random.choice([0, -1, [0], [0, 0]]), np.int64))], axis=axis)


def pad(g: RandomGraph) -> None:
    name = g.pick("f", lambda value: value.ndim > 0)
    g.add("Pad", [name, g.ints(*(g.random.choice([0, 0, 1]) for _ in range(2 * g.values[name].ndim)))])


def follow_shape(g: RandomGraph) -> None:
    """The chains that exporters write to keep a dim, here in any place, where 0 may copy another dim."""
    name = g.pick("fib", lambda value: value.ndim > 0)
    shape = g.add("Shape", [name])
    if g.random.random() < 0.3:
        g.add("Expand", [g.constant(g.array(np.float32, ())), str(shape)])
        return
    index = g.random.randrange(g.values[name].ndim)
    dim = g.add("Gather", [str(shape), g.constant(np.array([index], np.int64))])
    parts = [str(dim), g.ints(-1), *([g.ints(1)] if g.random.random() < 0.3 else [])]
    g.random.shuffle(parts)
    target = g.add("Concat", parts, axis=0)
    g.add("Reshape", [name, str(target)])


def reduce(g: RandomGraph) -> None:
    op_type = g.random.choice(REDUCTIONS)
    name = g.pick("f", lambda value: value.ndim > 0 and value.size > 0)
    axes = g.random.sample(range(g.values[name].ndim), g.random.choice([1, 1, g.values[name].ndim]))
    since = 13 if op_type == "ReduceSum" else 18
    g.add(op_type, **g.with_axes(since, axes, [name], keepdims=g.random.choice([0, 1])))


def softmax(g: RandomGraph) -> None:
    g.add(g.random.choice(["Softmax", "LogSoftmax"]), [g.pick("f", lambda value: value.ndim > 0)], axis=-1)


def product(g: RandomGraph) -> None:
    name = g.pick("f", lambda value: value.ndim > 0 and value.dtype == np.float32)
    depth = g.values[name].shape[-1]
    if g.values[name].ndim == 2 and g.random.random() < 0.4:
        operands = [name, g.constant(g.array(np.float32, (3, depth))), g.constant(g.array(np.float32, (3,)))]
        g.add("Gemm", operands, transB=1, alpha=g.random.choice([1.0, 0.5]))
        return
    found = g.add("MatMul", [name, g.constant(g.array(np.float32, (depth, 3)))])
    if found is not None:
        g.add("Add", [found, g.constant(g.array(np.float32, g.random.choice([(3,), (), (1, 3)])))])


def convolution(g: RandomGraph) -> None:
    name = g.pick("f", lambda value: value.ndim in (3, 4) and value.size > 0 and value.dtype == np.float32)
    rank, channels = g.values[name].ndim - 2, g.values[name].shape[1]
    kernel = [g.random.choice([1, 2, 3]) for _ in range(rank)]
    weights = g.constant(g.array(np.float32, (2, channels, *kernel)))
    pads = [g.random.choice([0, 1]) for _ in range(2 * rank)]
    found = g.add("Conv", [name, weights], pads=pads, kernel_shape=kernel)
    statistics = [g.constant(g.numpy.uniform(0.5, 2, 2).astype(np.float32)) for _ in range(4)]
    follower = g.random.choice(["BatchNormalization", "Mul", "Add", "MaxPool", "AveragePool"])
    if found is None:
        return
    if follower == "BatchNormalization":
        g.add(follower, [found, *statistics])
    elif follower.endswith("Pool"):
        g.add(follower, [found], kernel_shape=[2] * rank)
    else:
        g.add(follower, [found, g.constant(g.array(np.float32, (1, 2) + (1,) * rank))])


def again(g: RandomGraph) -> None:
    """A node once more."""
    node = g.random.choice([node for node in g.nodes if node.op_type not in ("Constant", "If", "Loop")])
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    g.add(node.op_type, list(node.input), len(node.output), **attributes)


def branch(g: RandomGraph) -> None:
    if g.nested:
        return
    value = g.pick("f")
    condition = g.constant(g.random.random() < 0.5) if g.random.random() < 0.5 else g.pick("b", lambda v: v.ndim == 0)
    graphs = {}
    for name in ("then_branch", "else_branch"):
        nodes, weights, made = g.body({}, 2)
        fitting = [item for item in made if g.inner[item].dtype == g.values[value].dtype]
        result = g.name("r")
        nodes.append(helper.make_node("Identity", [fitting[-1] if fitting else value], [result]))
        declared = helper.make_tensor_value_info(result, CODES[g.values[value].dtype], None)
        graphs[name] = helper.make_graph(nodes, name, [], [declared], weights)
    g.add("If", [condition], **graphs)


def loop(g: RandomGraph) -> None:
    if g.nested:
        return
    value = g.pick("f")
    item = g.values[value]
    index, go_on, state, kept, after = (g.name(prefix) for prefix in ("i", "k", "s", "t", "r"))
    nodes, weights, made = g.body({index: np.array(0), state: item}, 2)
    same = [name for name in made if g.inner[name].dtype == item.dtype and g.inner[name].shape == item.shape]
    nodes += [helper.make_node("Identity", [go_on], [kept]),
              helper.make_node("Identity", [same[-1] if same else state], [after])]  # fmt: skip
    port = helper.make_tensor_value_info
    body: GraphProto = helper.make_graph(
        nodes, "body",
        [port(index, TensorProto.INT64, []), port(go_on, TensorProto.BOOL, []), port(state, CODES[item.dtype], None)],
        [port(kept, TensorProto.BOOL, []), port(after, CODES[item.dtype], None)], weights,
    )  # fmt: skip
    trips = g.constant(np.array(g.random.choice([0, 1, 2, 3]), np.int64))
    g.add("Loop", [trips, g.constant(np.array(True)), value], body=body)


STEPS: list[Callable[[RandomGraph], None]] = [
    *[elementwise] * 5, choose, cast, *[reshape] * 2, *[transpose] * 2, squeeze, *[slices] * 2, *[join] * 2, gather,
    pad, *[follow_shape] * 2, *[reduce] * 2, softmax, *[product] * 2, *[convolution] * 2, again, branch, loop,
]  # fmt: skip
