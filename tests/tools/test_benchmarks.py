"""benchmarks/cpu.py and train.py measure every part of a small model, and say what they cannot measure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "cpu.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc"),
]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.usefixtures("unchecked")
def test_all_parts_of_a_model(model: Path) -> None:
    pytest.importorskip("onnxruntime")
    options = ("--against", "onnxruntime", "--threads", "1", "--runs", "2", "--parts", "time,start,memory", "--json")
    done = run(model, *options)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["precision"] == "float32"
    (found,) = report["models"]
    medians = found["time"]["1"]["median_ms"]
    ratio = medians["onnxruntime"] / medians["tilewright"]
    assert report["geometric_mean"] == {"onnxruntime": pytest.approx(ratio)}
    assert found["time"]["1"]["largest_error"] < 1e-5
    cold, warm = found["start"]["tilewright cold"], found["start"]["tilewright"]
    assert cold["compiled"] > 0
    assert (warm["compiled"], warm["loaded"]) == (0, cold["compiled"])
    assert cold["host_steps"] == []
    for side in ("tilewright", "onnxruntime"):
        assert found["memory"][side]["resident"] > found["memory"][side]["private"] > 10_000_000


def test_tables(model: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = run(model, "--against", "onnxruntime", "--threads", "1", "--runs", "1", "--parts", "time")
    assert done.returncode == 0, done.stderr
    assert "float32, medians of 1 runs" in done.stdout
    assert "geometric mean of ratios to onnxruntime" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--parts", "speed"], "--parts takes"), (["--zoo", "alexnet"], "--zoo takes")], ids=str
)
def test_bad_usage(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_training_steps(tmp_path: Path) -> None:
    """Without a peer, our own figures; losses are those of the same steps again."""
    script = SCRIPT.with_name("train.py")
    options = ["--only", "softmax 64", "--threads", "1", "--rounds", "1", "--json"]
    found = []
    for name in ("first", "second"):
        done = subprocess.run(
            [sys.executable, str(script), *options, str(tmp_path / name)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "softmax 64" in done.stdout
        (facts,) = json.loads((tmp_path / name).read_text())
        assert facts["side"] == "tilewright"
        assert 0 < facts["least_ms"] <= facts["median_ms"]
        assert facts["peak_bytes"] > facts["before_bytes"] > 0
        found.append(facts["losses"])
    assert found[0] == found[1]
