"""The cpu target computes with its own kernels alone: no other runtime is imported, and no BLAS routine is called."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright import Builder, f32

# Turns the first bytes of each BLAS routine that numpy brings into a breakpoint: a call of one ends the process.
# Then compiles and runs the models whose files are named. Other runtimes cannot be imported.
ALONE = """
import ctypes, mmap, platform, re, sys
for name in ("onnxruntime", "onnx.reference", "scipy", "torch"):
    sys.modules[name] = None
import numpy as np
import tilewright
from tilewright.backends.feeds import FeedPlan

BREAKPOINT = {"x86_64": b"\\xcc", "aarch64": b"\\x00\\x00\\x20\\xd4"}[platform.machine()]
ROUTINES = [
    f"{before}cblas_{kind}{name}{after}"
    for before in ("scipy_", "") for after in ("64_", "") for kind in "sd"
    for name in ("gemm", "gemv", "syrk", "dot", "axpy")
]

def forbid_blas():
    libc, count = ctypes.CDLL(None, use_errno=True), 0
    with open("/proc/self/maps") as file:
        paths = set(re.findall(r"/\\S*(?:blas|mkl)\\S*", file.read()))
    for library in map(ctypes.CDLL, paths):
        for routine in filter(lambda name: hasattr(library, name), ROUTINES):
            address = ctypes.cast(getattr(library, routine), ctypes.c_void_p).value
            page = address // mmap.PAGESIZE * mmap.PAGESIZE
            assert not libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(2 * mmap.PAGESIZE), 7), ctypes.get_errno()
            ctypes.memmove(address, BREAKPOINT, len(BREAKPOINT))
            count += 1
    assert count >= 8, paths

forbid_blas()
for path in sys.argv[2:]:
    module = tilewright.load(path)
    plan = FeedPlan(module)
    executable = tilewright.compile(module, target="cpu", threads=2)
    results = executable.run(plan.feeds(next(plan.scenarios())))
    print(path, len(results), "results, host steps:", executable.report()["host_steps"], flush=True)
if sys.argv[1] == "product":
    np.ones((9, 9), np.float32) @ np.ones((9, 9), np.float32)
"""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="functions are replaced in memory as Linux has it, by instructions of x86-64 and aarch64",
)


def network() -> tilewright.Module:
    """Convolutions, directly and by Winograd's way, products of all kinds, attention and an LSTM."""
    b = Builder("network")

    def weights(*shape: int) -> np.ndarray:
        return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32) / 8

    image = b.input("image", f32[2, 3, 16, 16])
    x = b.relu(b.conv(image, weights(64, 3, 3, 3), pads=[1, 1, 1, 1]))
    x = b.reshape(b.conv(x, weights(64, 64, 3, 3), pads=[1, 1, 1, 1]), np.array([2, 256, 64]))
    q, k, v = (x @ weights(64, 64) for _ in range(3))
    x = x + b.attention(q, k, v, q_num_heads=4, kv_num_heads=4)
    b.output(b.gemm(b.reshape(x, np.array([512, 64])), weights(64, 10), weights(10)), "scores")
    b.output(b.einsum(x, x, equation="bij,bkj->bik"), "products")
    b.output(b.lstm(x, weights(1, 64, 64), weights(1, 64, 16), hidden_size=16, outputs=3)[0], "states")
    return b.build()


def sized() -> tilewright.Module:
    """What follows from sizes is computed when a run is planned: a mask, numbers of places, those that are kept."""
    b = Builder("sized")
    x = b.input("x", f32["length", 8])
    length = b.shape(x, start=0, end=1)
    square = b.expand(np.float32(1), b.concat(length, length, axis=0))
    mask = b.trilu(square, upper=0)
    b.output(b.matmul(mask, x), "sums")
    counted = b.cumsum(b.expand(np.int64(1), length), np.array(0), exclusive=1)
    b.output(x + b.cast(b.unsqueeze(counted, np.array([1])), to=f32), "numbered")
    b.output(b.gather(x, b.squeeze(b.transpose(b.nonzero(counted), perm=[1, 0]), np.array([1])), axis=0), "rest")
    return b.build()


def run(mode: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ALONE, mode, *paths], capture_output=True, encoding="utf-8", timeout=300
    )


def test_models_run_without_other_runtimes_and_blas(tmp_path: Path) -> None:
    paths = []
    for module in (network(), sized()):
        paths.append(tmp_path / f"{len(paths)}.onnx")
        tilewright.save(module, paths[-1])
    done = run("models", *paths)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("3 results, host steps: []") == 2


def test_a_call_of_blas_would_be_seen() -> None:
    assert run("product").returncode < 0
