"""Adjoints of softmax and norms are one kernel, `row_map`, found by the pass fuse-rows: on the cpu, at the level
"kernel", printed and parsed; what does not go together stays apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from gradient_checks import normal

import tilewright
from tilewright import Builder, Module, PassManager
from tilewright.graph.clone import clone_module
from tilewright.graph.core import Operation
from tilewright.graph.dtypes import f32, from_numpy, i32
from tilewright.graph.equality import first_difference
from tilewright.graph.evaluator import Evaluator
from tilewright.graph.printer import print_module
from tilewright.graph.verifier import verify

KERNELS = "O2,lower-to-kernels,cse,fuse-kernels,fuse-rows,dce"
Feeds = dict[str, np.ndarray]


def model(function: Callable[..., Any], feeds: Feeds, dims: dict[str, Sequence[Any]] | None = None) -> Module:
    b = Builder("case")
    inputs = {
        name: b.input(name, from_numpy(array.dtype)[tuple((dims or {}).get(name, array.shape))])
        for name, array in feeds.items()
    }
    b.output(function(b, **inputs), "y")
    return b.build()


def kernels(module: Module, name: str = "kernel.row_map") -> list[Operation]:
    return [op for op in module.walk() if op.name == name]


def check(
    function: Callable[..., Any], feeds: Feeds, count: int = 1, sums: int = 0, dims: Any = None, dtype: Any = np.float32
) -> Module:
    """The gradient of sum(tanh(function)): as the reference has it, with so many row_maps and sums of rows."""
    given = {name: array.astype(dtype) if array.dtype.kind == "f" else array for name, array in feeds.items()}
    whole = model(lambda b, **x: b.reduce_sum(b.tanh(function(b, **x)), keepdims=0), given, dims)
    wrt = [name for name, array in given.items() if array.dtype.kind == "f"]
    graph = tilewright.gradient(whole, "y", wrt)
    expected = tilewright.compile(graph, target="reference").run(given)
    executables = [tilewright.compile(graph, target="cpu", threads=threads) for threads in (1, 3)]
    one, several = (executable.run(given) for executable in executables)
    for name, value in expected.items():
        tolerance = (2e-5 if dtype is np.float32 else 1e-11) * max(1, np.abs(value).max())
        np.testing.assert_allclose(one[name], value, rtol=0, atol=tolerance, err_msg=name)
        assert np.array_equal(one[name], several[name]), name
    module = executables[0].module
    assert len(kernels(module)) == count
    assert sum(op.attr("sums") for op in kernels(module)) == sums
    at_kernel_level(graph, given, expected, dtype)
    return module


def at_kernel_level(graph: Module, feeds: Feeds, expected: Feeds, dtype: Any) -> None:
    """The numpy meaning of the kernels; and the text of them round-trips."""
    module = clone_module(graph)
    PassManager.parse(KERNELS).run(module)
    verify(module)
    parsed = tilewright.parse(print_module(module), weights=module)
    assert first_difference(parsed, module) is None
    results = Evaluator(parsed.functions).run(parsed.main.block, [feeds[value.name] for value in module.main.inputs])
    for (name, value), found in zip(expected.items(), results, strict=True):
        tolerance = (2e-5 if dtype is np.float32 else 1e-11) * max(1, np.abs(value).max())
        np.testing.assert_allclose(found, value, rtol=0, atol=tolerance, err_msg=name)


SHAPES = [(5, 37), (3, 4, 130), (70, 16)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["softmax", "log_softmax"])
def test_softmax(kind: str, shape: tuple[int, ...]) -> None:
    check(lambda b, x: b.create(kind, x, axis=-1), {"x": normal(*shape)})


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_along_any_axis(axis: int) -> None:
    """Along the first one rows lie side by side in the memory of all of it; that is left as it is."""
    check(lambda b, x: b.softmax(x, axis=axis), {"x": normal(5, 6, 7)}, count=int(axis > 0))


def test_softmax_in_float64() -> None:
    """The two parts of the forward pass are such, too: exponentials under the greatest, quotients by their sum."""
    check(lambda b, x: b.softmax(x), {"x": normal(5, 37)}, count=3, dtype=np.float64)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_norm(shape: tuple[int, ...]) -> None:
    """Forward, too, where the statistics are needed again."""
    feeds = {"x": normal(*shape), "scale": normal(shape[-1]), "bias": normal(shape[-1], seed=1)}
    check(lambda b, x, scale, bias: b.layer_normalization(x, scale, bias, outputs=1), feeds, 2, sums=2)


def test_layer_norm_of_several_axes() -> None:
    feeds = {"x": normal(6, 5, 7), "scale": normal(5, 7), "bias": normal(5, 7, seed=1)}
    check(lambda b, x, scale, bias: b.layer_normalization(x, scale, bias, axis=1, outputs=1), feeds, 2, sums=2)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm(shape: tuple[int, ...]) -> None:
    check(lambda b, x, scale: b.rms_normalization(x, scale), {"x": normal(*shape), "scale": normal(shape[-1])}, sums=1)


@pytest.mark.parametrize("shape", [(3, 4, 5, 6), (2, 3, 70)], ids=str)
def test_instance_norm(shape: tuple[int, ...]) -> None:
    feeds = {"x": normal(*shape), "scale": normal(shape[1]), "bias": normal(shape[1], seed=1)}
    [op] = kernels(check(lambda b, x, scale, bias: b.instance_normalization(x, scale, bias), feeds))
    assert (op.attr("numbers"), len(op.results)) == (2, 3)


@pytest.mark.parametrize("shape", [(3, 6, 5, 4), (2, 6, 70)], ids=str)
def test_group_norm(shape: tuple[int, ...]) -> None:
    """Sums of channels are found in one pass, those of groups follow."""
    feeds = {"x": normal(*shape), "scale": normal(6), "bias": normal(6, seed=1)}
    build: Any = lambda b, x, scale, bias: b.group_normalization(x, scale, bias, num_groups=2)  # noqa: E731
    [op] = kernels(check(build, feeds))
    assert (op.attr("numbers"), len(op.results)) == (2, 2)
    check(build, feeds, dims={"x": ("n", *shape[1:])})


def test_open_batch() -> None:
    feeds = {"x": normal(9, 37), "scale": normal(37), "bias": normal(37, seed=1)}
    build: Any = lambda b, x, scale, bias: b.layer_normalization(x, scale, bias, outputs=1)  # noqa: E731
    check(build, feeds, 2, sums=2, dims={"x": ("n", 37)})
    check(lambda b, x: b.softmax(x), {"x": normal(9, 37)}, dims={"x": ("n", "m")})


def test_one_plan_after_another() -> None:
    """The plan for other sizes follows from that of the first ones."""
    b = Builder("case")
    x, scale = b.input("x", f32["n", "m"]), b.input("scale", f32["m"])
    b.output(b.reduce_sum(b.tanh(b.rms_normalization(x, scale)), keepdims=0), "y")
    graph = tilewright.gradient(b.build(), "y", ["x", "scale"])
    ours, reference = (tilewright.compile(graph, target=target) for target in ("cpu", "reference"))
    for n, m in ((3, 8), (700, 33), (5, 130), (1, 1), (64, 300), (4, 40000)):
        feeds = {"x": normal(n, m).astype(np.float32), "scale": normal(m).astype(np.float32)}
        expected = reference.run(feeds)
        for name, value in ours.run(feeds).items():
            np.testing.assert_allclose(value, expected[name], atol=5e-5, rtol=5e-5, err_msg=f"{name} of {n}x{m}")


def test_rows_that_no_cache_holds() -> None:
    """They are reduced and mapped apart; and where their length is known, not joined at all."""
    x = normal(2, 40000)
    module = check(lambda b, x: b.softmax(x), {"x": x}, dims={"x": ("n", "m")})
    assert kernels(module)
    assert not kernels(check(lambda b, x: b.softmax(x), {"x": x}, count=0))


def test_rows_side_by_side_that_are_added_up() -> None:
    """Channels last, with an adjoint for each of them."""

    def function(b: Any, x: Any, scale: Any) -> Any:
        lined = b.transpose(x, perm=[0, 2, 1])
        return b.transpose(b.rms_normalization(lined, scale), perm=[0, 2, 1])

    check(function, {"x": normal(3, 40, 9), "scale": normal(40)}, sums=1)


@pytest.mark.parametrize("shape", [(5, 37), (37, 1), (3, 40000)], ids=str)
@pytest.mark.parametrize("axis", [1, 0])
def test_what_others_read_later_is_a_result(axis: int, shape: tuple[int, int]) -> None:
    """A total, and a number that follows from it; rows along the last axis, or side by side, or of open length."""
    b = Builder("case")
    dims = (5, "n", "m") if axis else (5, "m", "n")
    x, y = b.input("x", f32[dims]), b.input("y", f32[dims])
    total = b.reduce_sum(b.mul(x, y), np.array([axis + 1]), keepdims=1)
    root = b.sqrt(b.add(b.mul(total, total), 1.0))
    b.output(b.mul(y, b.sub(x, root)), "z")
    b.output(b.neg(root), "root")
    b.output(total, "total")
    executable = tilewright.compile(b.build(), target="cpu")
    assert [op.attr("numbers") for op in kernels(executable.module)] == [2]
    sizes = (5, *(shape if axis else shape[::-1]))
    feeds = {"x": normal(*sizes).astype(np.float32), "y": normal(*sizes, seed=1).astype(np.float32)}
    found = executable.run(feeds)
    total_array = (feeds["x"].astype(np.float64) * feeds["y"]).sum(axis=axis + 1, keepdims=True)
    expected = {"total": total_array, "root": -np.sqrt(total_array**2 + 1)}
    expected["z"] = feeds["y"] * (feeds["x"] + expected["root"])
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=2e-6 * np.abs(array).max(), err_msg=name)


def test_what_others_read_before_stays_a_reduction() -> None:
    """What the second map reads follows from the total by way of a running sum; the first one takes it."""
    b = Builder("case")
    x = b.input("x", f32[5, 37])
    total = b.reduce_sum(b.mul(x, x), np.array([1]), keepdims=1)
    running = b.cumsum(b.sub(x, total), np.array(1))
    b.output(b.mul(running, b.add(x, total)), "y")
    module = b.build()
    executable = tilewright.compile(module, target="cpu")
    assert len(kernels(executable.module)) == 1
    feeds = {"x": normal(5, 37).astype(np.float32)}
    expected = tilewright.compile(module, target="reference").run(feeds)["y"]
    np.testing.assert_allclose(executable.run(feeds)["y"], expected, rtol=2e-5)


def test_a_chain_of_totals_is_several_kernels() -> None:
    """The second total follows from the first one."""
    b = Builder("case")
    x = b.input("x", f32[5, 37])
    centred = b.sub(x, b.reduce_mean(x, np.array([1]), keepdims=1))
    spread = b.reduce_mean(b.mul(centred, centred), np.array([1]), keepdims=1)
    b.output(b.div(centred, b.sqrt(b.add(spread, 0.5))), "y")
    module = b.build()
    PassManager.parse("lower-to-kernels,cse,fuse-kernels,fuse-rows,dce").run(module)
    assert len(kernels(module)) == 1
    assert len(kernels(module, "kernel.reduce")) == 1
    x_array = normal(5, 37).astype(np.float32)
    [found] = Evaluator(module.functions).run(module.main.block, [x_array])
    expected = x_array - x_array.mean(axis=1, keepdims=True)
    expected /= np.sqrt((expected**2).mean(axis=1, keepdims=True) + 0.5)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(
        tilewright.compile(b.build(), target="cpu").run({"x": x_array})["y"], expected, atol=1e-5
    )


# ---- several reductions of one tensor --------------------------------------------------------------------------------


def batch_norm(b: Any, x: Any, scale: Any, bias: Any) -> Any:
    channels = x.type.shape[1]
    running = [b.const(np.full(channels, value, scale.dtype.numpy)) for value in (0.0, 1.0)]
    return b.batch_normalization(x, scale, bias, *running, training_mode=1, outputs=3)[0]


@pytest.mark.parametrize("shape", [(4, 5, 6, 7), (70, 3), (3, 2, 9000), (9, 5, 3, 1)], ids=str)
def test_batch_norm(shape: tuple[int, ...]) -> None:
    """The adjoints of scale and bias are sums of one pass, as are mean and variance of large images; what is long is
    cut into pieces."""
    feeds = {"x": normal(*shape), "scale": normal(shape[1]), "bias": normal(shape[1], seed=1)}
    count = 1 + (np.prod(shape[2:]) >= 16)
    module = check(batch_norm, feeds, count)
    assert all((op.attr("numbers"), len(op.results)) == (2, 2) for op in kernels(module))
    check(batch_norm, feeds, count, dtype=np.float64)
    check(batch_norm, feeds, count, dims={"x": ("n", *shape[1:])})


@pytest.mark.parametrize("is_last", [True, False])
def test_moments_of_a_batch_keep_their_digits(is_last: bool) -> None:
    """Of large numbers close to each other; of images that differ; with one that is far away in the first place."""
    x = np.random.default_rng(5).normal(size=(6, 9, 8, 7)) + 1000
    x[:, 3] += np.arange(6).reshape(6, 1, 1) * 10
    x[2, 4, 0, 0] = 2000
    x = x.astype(np.float32)
    b = Builder("case")
    given = b.input("x", f32[(6, 8, 7, 9) if is_last else x.shape])
    seen = b.transpose(given, perm=[0, 3, 1, 2]) if is_last else given
    axes = np.array([0, 2, 3])
    mean = b.reduce_mean(seen, axes, keepdims=1)
    centered = b.sub(seen, mean)
    deviation = b.sqrt(b.add(b.reduce_mean(b.mul(centered, centered), axes, keepdims=1), 1e-5))
    b.output(deviation, "deviation")
    b.output(mean, "mean")
    executable = tilewright.compile(b.build(), target="cpu")
    assert len(kernels(executable.module)) == 1
    found = executable.run({"x": x.transpose(0, 2, 3, 1) if is_last else x})
    wide = x.astype(np.float64)
    np.testing.assert_allclose(found["mean"], wide.mean(axis=(0, 2, 3), keepdims=True), rtol=1e-6)
    expected = np.sqrt(wide.var(axis=(0, 2, 3), keepdims=True) + 1e-5)
    np.testing.assert_allclose(found["deviation"], expected, rtol=2e-5)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (1, 2)])
@pytest.mark.parametrize("shape", [(5, 7, 9), (70, 2, 130), (2, 300, 40)], ids=str)
@pytest.mark.parametrize("is_open", [False, True])
def test_reductions_side_by_side(axes: tuple[int, ...], shape: tuple[int, ...], is_open: bool) -> None:
    """Reductions of one tensor and of others like it, in several ways, with something done to them after."""
    b = Builder("case")
    dims: Any = ("n", "m", "k") if is_open else shape
    x, y, z = b.input("x", f32[dims]), b.input("y", f32[dims]), b.input("z", f32[dims[2]])
    along = np.array(axes)
    b.output(b.reduce_sum(x, along, keepdims=0), "sum")
    b.output(b.sqrt(b.add(b.reduce_mean(b.mul(x, x), along, keepdims=1), 0.5)), "root")
    b.output(b.reduce_mean(b.mul(b.mul(x, y), z), along, keepdims=0), "product")
    b.output(b.reduce_max(x, along, keepdims=0), "greatest")
    executable = tilewright.compile(b.build(), target="cpu")
    [op] = kernels(executable.module)
    assert (op.attr("numbers"), op.attr("kinds")) == (4, ("sum", "max", "mean", "mean"))
    assert not kernels(executable.module, "kernel.reduce")
    sizes = tuple(1 if is_open and size == 2 else size for size in shape)
    names = {"x": sizes, "y": sizes, "z": sizes[2:]}
    feeds = {name: normal(*size, seed=ord(name)).astype(np.float32) for name, size in names.items()}
    found = executable.run(feeds)
    xs, ys, zs = (array.astype(np.float64) for array in feeds.values())
    np.testing.assert_allclose(found["sum"], xs.sum(axis=axes), atol=1e-4)
    np.testing.assert_allclose(found["root"], np.sqrt((xs * xs).mean(axis=axes, keepdims=True) + 0.5), rtol=1e-5)
    np.testing.assert_allclose(found["product"], (xs * ys * zs).mean(axis=axes), atol=1e-5)
    assert np.array_equal(found["greatest"], feeds["x"].max(axis=axes))


def test_a_reduction_of_what_another_makes_is_not_joined() -> None:
    b = Builder("case")
    x = b.input("x", f32[6, 50])
    mean = b.reduce_mean(x, np.array([0]), keepdims=1)
    centred = b.sub(x, mean)
    b.output(b.reduce_sum(b.mul(centred, centred), np.array([0]), keepdims=1), "y")
    b.output(mean, "mean")
    executable = tilewright.compile(b.build(), target="cpu")
    assert not kernels(executable.module)
    x_array = normal(6, 50).astype(np.float32)
    expected = ((x_array - x_array.mean(axis=0)) ** 2).sum(axis=0, keepdims=True)
    np.testing.assert_allclose(executable.run({"x": x_array})["y"], expected, rtol=1e-5)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("dtype", [f32, i32], ids=str)
@pytest.mark.parametrize(("shape", "axes"), [((6, 6), (1,)), ((40, 300), (0,)), ((70000,), (0,))], ids=str)
def test_what_a_reduction_makes_of_the_totals_of_others(
    shape: tuple[int, ...], axes: tuple[int, ...], dtype: Any, keepdims: int
) -> None:
    """The greatest less the least is made where both are known."""
    b = Builder("case")
    x = b.input("x", dtype[shape])
    least = b.reduce_min(x, np.array(axes), keepdims=keepdims)
    b.output(b.sub(b.reduce_max(x, np.array(axes), keepdims=keepdims), least), "range")
    b.output(least, "least")
    executable = tilewright.compile(b.build(), target="cpu")
    assert [op.attr("kinds") for op in kernels(executable.module)] == [("min", "max")]
    assert not kernels(executable.module, "kernel.reduce")
    given = (100 * normal(*shape)).astype(dtype.numpy)
    found, least = executable.run({"x": given}), given.min(axis=axes, keepdims=bool(keepdims))
    assert np.array_equal(found["least"], least)
    assert np.array_equal(found["range"], given.max(axis=axes, keepdims=bool(keepdims)) - least)


@pytest.mark.parametrize("keepdims", [0, 1])
def test_further_operands_of_reductions_side_by_side(keepdims: int) -> None:
    """A factor of each result; as many rows as columns do not make it one of each column."""
    b = Builder("case")
    x, factor = b.input("x", f32[6, 6]), b.input("factor", f32[(6, 1) if keepdims else (6,)])
    b.output(b.mul(b.reduce_sum(x, [1], keepdims=keepdims), factor), "scaled")
    b.output(b.reduce_mean(x, [1], keepdims=keepdims), "mean")
    executable = tilewright.compile(b.build(), target="cpu")
    given, factors = normal(6, 6).astype(np.float32), normal(6, 1, seed=1).astype(np.float32)
    found = executable.run({"x": given, "factor": factors if keepdims else factors[:, 0]})
    np.testing.assert_allclose(found["scaled"].reshape(6, 1), given.sum(axis=1, keepdims=True) * factors, atol=1e-5)
    np.testing.assert_allclose(found["mean"].reshape(6), given.mean(axis=1), atol=1e-6)
