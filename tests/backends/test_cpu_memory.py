"""What an executable keeps in memory: packed weights, and not the pages of the file that they came from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright.graph.data import MappedData, MappedFile
from tilewright.graph.dtypes import f32
from tilewright.graph.model_builder import Builder

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


def test_packed_weights_are_there_once(tmp_path: Path) -> None:
    """A product of 16 MB weights and a convolution of 9 MB filters, in a process of their own."""
    random = np.random.default_rng(0)
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
