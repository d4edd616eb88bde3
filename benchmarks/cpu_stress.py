"""The cpu target under stress: many runs by many threads with many shapes, and memory that must stay flat.

    python -m tilewright.benchmarks.cpu_stress [minutes]

With TILEWRIGHT_CHECK_BOUNDS=1 each access of memory is checked too. Ends with an error at the first wrong result.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

import tilewright
from tilewright.graph.dtypes import f32
from tilewright.graph.model_builder import Builder


def network() -> object:
    """A convolution, a pool, attention-like rows and products, of any batch, height and width."""
    random = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return (random.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    b = Builder("stress")
    x = b.input("x", f32["n", 3, "h", "w"])
    y = b.relu(b.conv(x, weights(16, 3, 3, 3), pads=[1, 1, 1, 1]))
    y = b.max_pool(y, kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1])
    y = b.relu(b.conv(y, weights(24, 16, 3, 3), pads=[1, 1, 1, 1]))
    rows = b.transpose(b.reshape(y, np.array([0, 24, -1])), perm=[0, 2, 1])
    scores = b.softmax(rows @ b.transpose(rows, perm=[0, 2, 1]), axis=-1)
    b.output(b.gelu((scores @ rows) @ weights(24, 10)), "y")
    return b.build()


def resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    statistics = Path("/proc/self/statm")
    return int(statistics.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statistics.exists() else 0


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    random = np.random.default_rng(1)
    shapes = [(n, 3, h, w) for n in (1, 2, 3) for h, w in ((1, 1), (1, 9), (5, 4), (16, 17), (33, 8))]
    inputs = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    model = network()
    executable = tilewright.compile(model, target="cpu", threads=2)
    reference = tilewright.compile(model, target="reference")
    wanted = [executable.run({"x": x})["y"] for x in inputs]
    for x, y in zip(inputs, wanted, strict=True):
        np.testing.assert_allclose(y, reference.run({"x": x})["y"], rtol=1e-3, atol=1e-4)
    deadline = time.monotonic() + 60 * minutes
    counts, wrong, sizes = [0] * 8, [], []

    def work(which: int) -> None:
        order = np.random.default_rng(which)
        while time.monotonic() < deadline and not wrong:
            index = int(order.integers(len(inputs)))
            if not np.array_equal(executable.run({"x": inputs[index]})["y"], wanted[index]):
                wrong.append(shapes[index])
            counts[which] += 1

    threads = [threading.Thread(target=work, args=(which,)) for which in range(len(counts))]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(1)
        sizes.append(resident())
    print(f"{sum(counts)} runs by {len(counts)} threads, {len(shapes)} shapes")
    print(f"resident: {sizes[len(sizes) // 4] >> 20} MiB after a quarter of the time, {sizes[-1] >> 20} MiB at the end")
    if wrong:
        raise SystemExit(f"a wrong result at {wrong[0]}")


if __name__ == "__main__":
    main()
