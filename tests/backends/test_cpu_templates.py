"""Plans made from earlier ones are the plans that would be made without them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx.helper as oh
import pytest

import tilewright
from tilewright.backends.cpu.executable import CpuExecutable
from tilewright.backends.cpu.memory_plan import Lifetime, place, restack, stack_of
from tilewright.backends.cpu.segment import Segment
from tilewright.backends.cpu.templates import MOST_TEMPLATES, Templates
from tilewright.backends.reference.interpreter import ReferenceExecutable
from tilewright.graph.dtypes import DType, f32, u8
from tilewright.graph.model_builder import Builder


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def perceptron(b: Builder) -> None:
    x = b.input("x", f32["n", "m", 24])
    y = b.softmax(b.relu(x @ weights(24, 40)), axis=-1)
    b.output(b.transpose(y, perm=[0, 2, 1]) @ x, "y")


def image(b: Builder) -> None:
    x = b.input("x", f32["n", 3, "m", 24])
    y = b.relu(b.conv(x, weights(16, 3, 3, 3), pads=[1, 1, 1, 1], strides=[2, 1]))
    y = b.concat(y, b.conv(y, weights(8, 16, 3, 3), pads=[1, 1, 1, 1]), axis=1)
    b.output(b.reduce_mean(y, np.array([2, 3]), keepdims=1) * y, "y")


def heads(b: Builder) -> None:
    x = b.input("x", f32["n", 6, 32])
    y = b.transpose(b.reshape(x @ weights(32, 32), [0, 0, 4, 8]), perm=[0, 2, 1, 3])
    b.output(y @ b.transpose(y, perm=[0, 1, 3, 2]), "y")


def small_image(b: Builder) -> None:
    x = b.input("x", f32["n", 3, 9, 24])
    y = b.relu(b.conv(x, weights(16, 3, 3, 3), pads=[1, 1, 1, 1], strides=[2, 1]))
    y = b.conv(y, weights(16, 1, 3, 3), pads=[1, 1, 1, 1], group=16)
    b.output(b.max_pool(y, kernel_shape=[2, 2]), "y")


def bytes_times_bytes(b: Builder) -> None:
    x = b.input("x", u8["n", 6, 32])
    b.output(b.matmul_integer(x, b.transpose(x, perm=[0, 2, 1])), "y")


@pytest.mark.parametrize("model", [heads, small_image, bytes_times_bytes])
def test_a_batch_of_any_size_has_kernels_for_what_is_in_it(model: Callable[[Builder], None]) -> None:
    b = Builder("model")
    model(b)
    module = b.build()
    executable, reference = CpuExecutable(module, 1), ReferenceExecutable(module)
    rest = module.main.inputs[0].type.shape[1:]
    rng, counts = np.random.default_rng(5), []
    for n in (1, 2, 3, 7, 2, 40):
        x = rng.uniform(0, 9, (n, *rest)).astype(module.main.inputs[0].type.dtype.numpy)
        ours, theirs = executable.run({"x": x})["y"], reference.run({"x": x})["y"]
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
        counts.append(len(executable._shared.library.kernels))
    assert len(set(counts[1:])) == 1


@pytest.mark.parametrize("model", [perceptron, image])
@pytest.mark.parametrize("threads", [1, 4])
def test_a_plan_from_a_template_has_the_same_numbers(model: Callable[[Builder], None], threads: int) -> None:
    b = Builder("model")
    model(b)
    executable = CpuExecutable(b.build(), threads)
    [segment] = [step for steps in executable._steps.values() for step in steps if isinstance(step, Segment)]
    shape = [segment.inputs[0].type.shape[axis] for axis in range(segment.inputs[0].type.rank)]
    templates = Templates(executable._shared, segment, {})
    followed = 0
    for n, m in ((2, 7), (3, 9), (2, 11), (1, 1), (5, 13), (4, 40), (1, 30), (2, 200)):
        sizes = iter((n, m))
        given = [tuple(size if isinstance(size, int) else next(sizes) for size in shape)]
        templates.program(given)
        wanted = templates._outline(given)
        for template in templates._found:
            numbers = template.numbers([n, m])
            if numbers is not None:
                followed += 1
                assert numbers[0].tolist() == wanted.numbers
                assert [np.asarray(value).tolist() for value in numbers[1]] == wanted.values
                assert [call.kernel for call in template.first.calls] == [call.kernel for call in wanted.calls]
    assert templates._is_traceable
    assert followed > len(templates._found)


@pytest.mark.parametrize("model", [perceptron, image])
def test_results_do_not_depend_on_the_way_to_the_plan(model: Callable[[Builder], None]) -> None:
    b = Builder("model")
    model(b)
    module = b.build()
    executable = CpuExecutable(module, 2)
    for n, m in ((2, 7), (3, 9), (2, 11), (4, 40)):
        shape = (n, m, 24) if model is perceptron else (n, 3, m, 24)
        x = weights(*shape)
        assert np.array_equal(executable.run({"x": x})["y"], CpuExecutable(module, 2).run({"x": x})["y"])


def test_plans_beyond_the_last_template_have_the_kernels_of_those_before() -> None:
    b = Builder("model")
    heads(b)
    executable = CpuExecutable(b.build(), 1)
    executable.run({"x": weights(2, 6, 32)})
    count = len(executable._shared.library.kernels)
    [templates] = executable._templates.values()
    templates._found[:] = templates._found[:1] * MOST_TEMPLATES  # what the first one is for is a single matrix
    executable.run({"x": weights(3, 6, 32)})
    assert len(templates._found) == MOST_TEMPLATES
    assert len(executable._shared.library.kernels) == count


@pytest.mark.parametrize("widths", [(34, 300, 2000, 40), (2000, 34, 300)])
def test_rows_of_any_length_and_images_of_any_width_share_a_template(widths: tuple[int, ...]) -> None:
    b = Builder("model")
    x = b.input("x", f32[1, 32, 16, "width"])
    y = b.conv(x, weights(32, 1, 5, 5), pads=[2, 2, 2, 2], group=32)
    b.output(b.mul(y, b.sigmoid(b.conv(b.global_average_pool(y), weights(32, 32, 1, 1)))), "y")
    module = b.build()
    executable, reference = CpuExecutable(module, 2), ReferenceExecutable(module)
    for width in widths:
        x = weights(1, 32, 16, width)
        y, wanted = executable.run({"x": x})["y"], reference.run({"x": x})["y"]
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)
    assert [len(templates._found) for templates in executable._templates.values()] == [1]


def test_maps_of_any_size_share_a_template() -> None:
    b = Builder("model")
    rows, columns = b.input("rows", f32["n", 1]), b.input("columns", f32[1, "n"])
    b.output(b.mul(b.add(rows, columns), rows), "y")
    executable = CpuExecutable(b.build(), 1)
    [templates] = executable._templates.values()
    made = len(templates._found)  # for a size of 1, and for others
    for size in (20, 500, 3):
        x = weights(size, 1)
        y = executable.run({"rows": x, "columns": x.T.copy()})["y"]
        np.testing.assert_allclose(y, (x + x.T) * x, rtol=1e-5)
    assert len(templates._found) == made


@pytest.mark.parametrize("claim", [(3, 4), (3, "n"), ("n", 4)])
def test_a_template_for_a_declared_size_is_not_one_for_others(claim: tuple[int | str, ...]) -> None:
    """What a sequence holds may have another shape than the file says."""
    nodes = [
        oh.make_node("SequenceConstruct", ["x"], ["sequence"]),
        oh.make_node("SequenceAt", ["sequence", "place"], ["item"]),
        oh.make_node("Softmax", ["item"], ["y"], axis=1),
    ]
    inputs = [oh.make_tensor_value_info("x", 1, ["a", "b"]), oh.make_tensor_value_info("place", 7, [])]
    graph = oh.make_graph(nodes, "claims", inputs, [oh.make_tensor_value_info("y", 1, None)], value_info=[
        oh.make_tensor_value_info("item", 1, claim)])  # fmt: skip
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=10)
    executable = tilewright.compile(model, threads=1)
    for shape in ((3, 4), (3, 7), (8, 4), (8, 7), (4, 3), (3, 4), (0, 4)):
        x = weights(*shape)
        exponentials = np.exp(x)
        wanted = exponentials / exponentials.sum(1, keepdims=True)
        result = executable.run({"x": x, "place": np.array(0)})["y"]
        np.testing.assert_allclose(result, wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", [f32, u8], ids=str)
def test_a_single_row_times_matrices_of_any_size_takes_no_new_kernels(dtype: DType) -> None:
    """As when text is generated word by word, and what a word looks at gets longer."""
    b = Builder("model")
    x, y = b.input("x", dtype["n", "k"]), b.input("y", dtype["k", "m"])
    b.output(x @ y if dtype is f32 else b.matmul_integer(x, y), "z")
    executable = CpuExecutable(b.build(), 1)
    rng, counts = np.random.default_rng(4), []
    for k, m in ((9, 64), (10, 64), (11, 64), (11, 65), (300, 70)):
        x_value, y_value = (rng.integers(0, 9, shape).astype(dtype.numpy) for shape in ((1, k), (k, m)))
        result = executable.run({"x": x_value, "y": y_value})["z"]
        np.testing.assert_array_equal(result, x_value.astype(np.int64) @ y_value.astype(np.int64))
        counts.append(len(executable._shared.library.kernels))
    assert counts[0] == counts[-1]


@pytest.mark.parametrize(
    ("x_order", "y_order"), [((0, 1, 2), (0, 2, 1)), ((0, 2, 1), (0, 2, 1)), ((2, 0, 1), (0, 2, 1)), ((1, 2, 0),) * 2]
)
def test_transposed_factors_of_any_size_take_no_new_kernels(x_order: tuple[int, ...], y_order: tuple[int, ...]) -> None:
    """Whichever strides are open: of columns, of k, or of both."""
    b = Builder("model")
    x = b.input("x", f32[tuple("bmk"[x_order.index(axis)] for axis in range(3))])
    y = b.input("y", f32[tuple("bkn"[y_order.index(axis)] for axis in range(3))])
    b.output(b.matmul(b.transpose(x, perm=list(x_order)), b.transpose(y, perm=list(y_order))), "z")
    executable = CpuExecutable(b.build(), 1)
    rng, counts = np.random.default_rng(4), []
    for m, k, n in ((17, 9, 25), (18, 10, 26), (19, 33, 24), (40, 100, 37)):
        shapes = ((3, m, k), (3, k, n))
        values = [
            rng.integers(-9, 9, [shape[order.index(axis)] for axis in range(3)]).astype(np.float32)
            for shape, order in zip(shapes, (x_order, y_order), strict=True)
        ]
        wanted = values[0].transpose(x_order) @ values[1].transpose(y_order)
        result = executable.run({"x": values[0], "y": values[1]})["z"]
        np.testing.assert_array_equal(result, wanted)
        counts.append(len(executable._shared.library.kernels))
    assert counts[0] == counts[-1]


def test_weights_stored_as_bytes_are_packed_once() -> None:
    b = Builder("model")
    x = b.input("x", f32["n", 40])
    w = np.random.default_rng(2).integers(-128, 127, (40, 24)).astype(np.int16)
    scale = np.float32(0.01)
    b.output(x @ b.dequantize_linear(b.const(w), b.const(scale)), "y")
    executable = CpuExecutable(b.build(), 1)
    x_value = weights(5, 40)
    result = executable.run({"x": x_value})["y"]
    np.testing.assert_allclose(result, x_value @ (w * scale), rtol=1e-4, atol=1e-4)
    packed = [key for key in executable._shared.weights if key[0] == "panels"]
    executable.run({"x": weights(3, 40)})
    assert len(packed) == 1
    assert [key for key in executable._shared.weights if key[0] == "panels"] == packed


def test_other_sizes_on_a_stack_do_not_overlap() -> None:
    random = np.random.default_rng(5)
    lives = [(int(start), int(start + length)) for start, length in random.integers(0, 9, (40, 2))]
    sizes = random.integers(0, 500, 40).tolist()
    lifetimes = [Lifetime(size, *life) for size, life in zip(sizes, lives, strict=True)]
    offsets, total = place(lifetimes)
    stack = stack_of(lifetimes, offsets)
    assert restack(stack, sizes)[1] <= total
    sizes = random.integers(0, 5000, 40).tolist()
    offsets, total = restack(stack, sizes)
    for i, mine in enumerate(lives):
        assert offsets[i] + sizes[i] <= total
        for j, other in enumerate(lives[:i]):
            together = mine[0] <= other[1] and other[0] <= mine[1]
            apart = offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i]
            assert apart or not together


def test_one_image_takes_the_kernels_for_several() -> None:
    b = Builder("images")
    x = b.input("x", f32["n", 20, "h", "w"])
    y = b.relu(b.conv(x, weights(20, 20, 3, 3), weights(20), pads=[1, 1, 1, 1])) + x
    b.output(b.conv(y, weights(20, 1, 5, 5), pads=[2, 2, 2, 2], group=20), "z")
    executable = CpuExecutable(b.build(), 1)
    reference = tilewright.compile(b.build(), target="reference")
    made = []
    for shape in ((2, 20, 5, 9), (1, 20, 5, 9), *((1, 20, 3, width) for width in range(4, 31))):
        x_value = weights(*shape)
        expected = reference.run({"x": x_value})["z"]
        np.testing.assert_allclose(executable.run({"x": x_value})["z"], expected, rtol=1e-3, atol=1e-2)
        report = executable.report()
        made.append(report["compiled"] + report["loaded"])
    # One image's input is turned by code of its own; and small images have Winograd's convolution.
    assert made[1] - made[0] <= 1
    assert made[-1] - made[1] <= 1
    assert sum(count for name, count in executable.report()["kernels"].items() if name.startswith("depthwise")) > 25
