"""share-kernels: small kernels that differ in numbers only are one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.backends.cpu.executable import CpuExecutable
from tilewright.graph.dtypes import f32
from tilewright.graph.evaluator import Evaluator
from tilewright.graph.kernel.bodies import signature
from tilewright.graph.model_builder import Builder
from tilewright.graph.module import Module
from tilewright.passes.manager import PassManager

KERNELS = "O2,integer-products,expand-legacy,lower-to-kernels,cse,fuse-kernels,fuse-rows,byte-tables"
SIZE = 24


def quantized(b: Builder, x: object, scale: float, zero: int) -> object:
    given = b.const(np.float32(scale)), b.const(np.uint16(zero))
    return b.dequantize_linear(b.quantize_linear(x, *given), *given)


def products(b: Builder) -> None:
    rng = np.random.default_rng(1)
    x = b.input("x", f32["n", SIZE])
    for index, (scale, zero) in enumerate(((0.0007, 31000), (0.0009, 33333), (0.0011, 32768))):
        w = rng.standard_normal((SIZE, SIZE)).astype(np.float32)
        b.output(quantized(b, x @ w, scale, zero), f"y{index}")


def maps(b: Builder) -> None:
    x = b.input("x", f32[6, SIZE])
    for index in range(3):
        b.output(b.exp(x * (0.5 + index)) + 1.0, f"y{index}")


def rows(b: Builder) -> None:
    x = b.input("x", f32[6, SIZE])
    for index in range(2):
        b.output(b.softmax(x, axis=-1) * (2.0 + index) + x, f"y{index}")
    b.output(b.layer_normalization(x, np.ones(SIZE, np.float32), axis=-1) + 7.0, "y2")


def images(b: Builder) -> None:
    rng = np.random.default_rng(1)
    x = b.input("x", f32[1, 8, 9, 9])
    for index, (scale, zero) in enumerate(((0.0017, 31000), (0.0019, 33333))):
        w = rng.standard_normal((8, 8, 3, 3)).astype(np.float32)
        b.output(quantized(b, b.conv(x, w, pads=[1, 1, 1, 1]), scale, zero), f"y{index}")


def built(model: Callable[[Builder], None]) -> Module:
    b = Builder("model")
    model(b)
    return b.build()


def feeds_of(module: Module) -> dict[str, np.ndarray]:
    [x] = module.main.inputs
    shape = [size if isinstance(size, int) else 5 for size in x.type.shape]
    return {"x": np.random.default_rng(2).standard_normal(shape).astype(np.float32)}


def meaning(module: Module, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return Evaluator(module.functions).run(module.main.block, list(feeds.values()))


def bodies(module: Module) -> list[str]:
    return [signature(region.block) for op in module.main.block for region in op.regions.values()]


@pytest.mark.parametrize(("model", "shared"), [(products, 3), (maps, 3), (rows, 2), (images, 2)])
def test_kernels_become_one_and_mean_the_same(model: Callable[[Builder], None], shared: int) -> None:
    module = built(model)
    feeds = feeds_of(module)
    PassManager.parse(KERNELS).run(module)
    before = meaning(module, feeds)
    assert max(map(bodies(module).count, bodies(module))) == 1
    assert PassManager.parse("share-kernels").run(module).changed
    assert max(map(bodies(module).count, bodies(module))) == shared
    for one, other in zip(before, meaning(module, feeds), strict=True):
        assert np.array_equal(one, other)
    assert not PassManager.parse("share-kernels").run(module).changed


@pytest.mark.parametrize("model", [products, maps, rows, images])
def test_compiled_kernels_are_shared_and_give_the_same_bits(model: Callable[[Builder], None]) -> None:
    module = built(model)
    feeds = feeds_of(module)
    executable = CpuExecutable(module, 1)
    ours = executable.run(feeds)
    PassManager.parse(f"{KERNELS},dce").run(module)
    apart = CpuExecutable(module, 1)
    theirs = apart.run(feeds)
    for name, array in theirs.items():
        assert np.array_equal(array, ours[name]), name
    assert len(executable._shared.library.kernels) < len(apart._shared.library.kernels)


@pytest.mark.parametrize("size", [1 << 8, 1 << 16])
def test_large_kernels_keep_their_numbers(size: int) -> None:
    b = Builder("model")
    x = b.input("x", f32[size])
    for index in range(2):
        b.output(b.exp(x * (0.5 + index)) + 1.0, f"y{index}")
    module = b.build()
    PassManager.parse(KERNELS).run(module)
    assert PassManager.parse("share-kernels").run(module).changed == (size == 1 << 8)


def test_numbers_that_decide_on_code_stay() -> None:
    b = Builder("model")
    x = b.input("x", f32[8])
    b.output(b.pow(x, b.const(np.float32(2.0))), "square")
    b.output(b.pow(x, b.const(np.float32(0.3))), "root")
    module = b.build()
    PassManager.parse(KERNELS).run(module)
    assert not PassManager.parse("share-kernels").run(module).changed
