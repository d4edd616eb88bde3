"""What an executable keeps in memory: packed weights, and not the pages of the file that they came from."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.backends.cpu import executable as executable_module
from tilewright.backends.cpu.executable import CpuExecutable
from tilewright.graph.data import ArrayData, ComputedData, MappedData, MappedFile, derived
from tilewright.graph.dtypes import f32
from tilewright.graph.model_builder import Builder

random = np.random.default_rng(0)
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from Linux's /proc")


def file_bytes() -> int:
    """Bytes of mapped files that are in the memory of this process."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssFile")]
    return int(line.split()[1]) << 10


def test_released_pages_are_read_again(tmp_path: Path) -> None:
    numbers = np.arange(1 << 20, dtype=np.float32)
    path = tmp_path / "numbers"
    path.write_bytes(b"head" + numbers.tobytes() + b"end")
    data = MappedData(MappedFile.open(path), 4, numbers.nbytes, f32, numbers.shape)
    assert data.numpy().sum() == numbers.sum()
    before = file_bytes()
    data.release()
    assert file_bytes() < before - (3 << 20)
    np.testing.assert_array_equal(data.numpy(), numbers)
    MappedData(data.file, 4, 8, f32, (2,)).release()  # less than a page
    MappedData(data.file, 4, 0, f32, (0,)).release()


def square_in_a_file(folder: Path) -> tuple[np.ndarray, MappedData]:
    numbers = np.arange(1 << 16, dtype=np.float32).reshape(256, 256)
    path = folder / "numbers"
    path.write_bytes(numbers.tobytes())
    return numbers, MappedData(MappedFile.open(path), 0, numbers.nbytes, f32, numbers.shape)


def test_what_follows_from_a_file_is_computed_again(tmp_path: Path) -> None:
    numbers, stored = square_in_a_file(tmp_path)
    calls: list[int] = []

    def turn(array: np.ndarray) -> np.ndarray:
        calls.append(1)
        return array.T

    data = derived(turn, stored, dtype=f32)
    assert isinstance(data, ComputedData)
    assert data.held_bytes == 0
    data.release()
    first = data.numpy()
    data.release()
    assert data.numpy() is first  # somebody has it still
    np.testing.assert_array_equal(first, numbers.T)
    assert not first.flags.writeable
    twice = derived(lambda array: array * 2, data, dtype=f32)
    del first
    twice.release()
    np.testing.assert_array_equal(twice.numpy(), 2 * numbers.T)
    assert len(calls) == 3
    assert twice.same_as(ArrayData(2 * numbers.T))


def test_what_has_a_known_shape_is_computed_when_it_is_read(tmp_path: Path) -> None:
    numbers, stored = square_in_a_file(tmp_path)
    calls: list[int] = []

    def halve(array: np.ndarray) -> np.ndarray:
        calls.append(1)
        return array[::2]

    data = derived(halve, stored, dtype=f32, shape=(128, 256))
    assert (data.shape, data.nbytes, data.held_bytes, calls) == ((128, 256), numbers.nbytes // 2, 0, [])
    np.testing.assert_array_equal(data.numpy(), numbers[::2])
    assert calls == [1]
    held = derived(halve, ArrayData(numbers), dtype=f32, shape=(128, 256))
    assert isinstance(held, ArrayData)
    assert calls == [1, 1]


def test_what_follows_from_memory_or_is_small_stays(tmp_path: Path) -> None:
    held = ArrayData(np.ones((256, 256), np.float32))
    assert isinstance(derived(lambda array: array + 1, held), ArrayData)
    path = tmp_path / "numbers"
    path.write_bytes(bytes(16))
    assert isinstance(derived(lambda array: array + 1, MappedData(MappedFile.open(path), 0, 16, f32, (4,))), ArrayData)


def test_packed_weights_are_there_once(tmp_path: Path) -> None:
    """A product of 16 MB weights and a convolution of 9 MB filters, in a process of their own."""
    b = Builder("weights")
    x = b.input("x", f32[1, 512, 7, 7])
    y = b.relu(b.conv(x, random.normal(size=(512, 512, 3, 3)).astype(np.float32), pads=[1, 1, 1, 1]))
    rows = b.reshape(y, np.array([49, 512]))
    b.output(rows @ random.normal(size=(512, 8192)).astype(np.float32), "y")
    path = tmp_path / "weights.onnx"
    tilewright.save(b.build(), path)
    script = (
        "import sys, numpy as np, tilewright\n"
        "from pathlib import Path\n"
        "def file_bytes():\n"
        "    lines = Path('/proc/self/smaps').read_text().split('weights.onnx')[1:]\n"
        "    return sum(int(part.split('Rss:')[1].split()[0]) << 10 for part in lines)\n"
        "module = tilewright.load(sys.argv[1])\n"
        "executable = tilewright.compile(module, target='cpu', threads=1)\n"
        "executable.run({'x': np.ones((1, 512, 7, 7), np.float32)})\n"
        "print(file_bytes())\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2 << 20


def layers(rows: int | str) -> Any:
    b = Builder("layers")
    y = b.input("x", f32[rows, 16])
    for _ in range(2):
        y = b.relu(y @ random.normal(size=(16, 16)).astype(np.float32))
    b.output(b.softmax(y), "y")
    return b.build()


def test_plans_share_arenas_and_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable_module, "MOST_PLANS", 20)
    executable = tilewright.compile(layers("n"), target="cpu", threads=2)
    assert isinstance(executable, CpuExecutable)
    inputs = [random.normal(size=(rows, 16)).astype(np.float32) for rows in (200, *range(1, 60), 200)]
    results = [executable.run({"x": x})["y"] for x in inputs]
    assert len(executable._programs) == 20
    assert len(executable._shared.arenas) == 1
    assert executable._shared.arenas[0][0].nbytes >= 200 * 16 * 4
    for x, y in zip(inputs[::7], results[::7], strict=True):
        np.testing.assert_array_equal(executable.run({"x": x})["y"], y)


def test_runs_at_the_same_time_have_arenas_of_their_own() -> None:
    executable = tilewright.compile(layers("n"), target="cpu", threads=1)
    assert isinstance(executable, CpuExecutable)
    inputs = [random.normal(size=(rows, 16)).astype(np.float32) for rows in (1, 300, 17, 64)]
    wanted = [executable.run({"x": x})["y"] for x in inputs]
    wrong: list[int] = []

    def work(which: int) -> None:
        place = np.empty_like(wanted[which])
        for turn in range(200):
            if turn % 2:
                executable.run_into({"x": inputs[which]}, {"y": place})
            else:
                place = executable.run({"x": inputs[which]})["y"]
            if not np.array_equal(place, wanted[which]):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(which % 4,)) for which in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(executable._shared.arenas) <= 4


def test_two_executables_at_once() -> None:
    both = [tilewright.compile(layers(rows), target="cpu", threads=2) for rows in (40, "n")]
    x = random.normal(size=(40, 16)).astype(np.float32)
    wanted = [executable.run({"x": x})["y"] for executable in both]
    wrong: list[int] = []

    def work(which: int) -> None:
        for _ in range(300):
            if not np.array_equal(both[which].run({"x": x})["y"], wanted[which]):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_memory_stays_flat_over_many_sizes() -> None:
    """Ten thousand runs of a thousand sizes."""
    script = (
        "import os, numpy as np, tilewright\n"
        "from tilewright import Builder, f32\n"
        "b = Builder(); x = b.input('x', f32['n', 16])\n"
        "b.output(b.softmax(b.relu(x @ np.ones((16, 16), np.float32))), 'y')\n"
        "executable = tilewright.compile(b.build(), target='cpu', threads=2)\n"
        "inputs = [np.ones((rows, 16), np.float32) for rows in range(1, 1001)]\n"
        "def resident():\n"
        "    return int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE')\n"
        "def all_of_them(times):\n"
        "    for _ in range(times):\n"
        "        for x in inputs:\n"
        "            executable.run({'x': x})\n"
        "all_of_them(2)\n"
        "before = resident()\n"
        "all_of_them(8)\n"
        "assert resident() - before < 4 << 20, (before, resident())\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_folded_weights_are_there_once(tmp_path: Path) -> None:
    """Filters that take in a normalization are kept as kernels read them; others compute them again."""
    b = Builder("folded")
    y = b.input("x", f32["n", 64, 9, 9])
    weights = [random.normal(size=(64, 64, 3, 3)).astype(np.float32) / 24 for _ in range(3)]
    for filters in weights:
        scale, shift, mean = (random.normal(size=64).astype(np.float32) for _ in range(3))
        y = b.conv(y, filters, pads=[1, 1, 1, 1])
        y = b.relu(b.batch_normalization(y, scale, shift, mean, random.uniform(1, 2, 64).astype(np.float32)))
    b.output(y, "y")
    tilewright.save(b.build(), tmp_path / "folded.onnx")
    module = tilewright.load(tmp_path / "folded.onnx")
    executable = tilewright.compile(module, target="cpu", threads=1)
    assert isinstance(executable, CpuExecutable)
    folded = [
        data for op in executable.module.walk()
        if op.name == "const" and isinstance(data := op.attributes["value"], ComputedData)
    ]  # fmt: skip
    assert len(folded) == 3
    assert all(data._array is None and data._used() is None for data in folded)
    reference = tilewright.compile(module, target="reference")
    for batch in (1, 2, 5):
        x = random.normal(size=(batch, 64, 9, 9)).astype(np.float32)
        np.testing.assert_allclose(executable.run({"x": x})["y"], reference.run({"x": x})["y"], rtol=1e-3, atol=1e-3)
    tilewright.save(tilewright.optimize(module).module, tmp_path / "written.onnx")
    again = tilewright.compile(tmp_path / "written.onnx", target="cpu", threads=1)
    np.testing.assert_allclose(again.run({"x": x})["y"], executable.run({"x": x})["y"], rtol=1e-4, atol=1e-4)
