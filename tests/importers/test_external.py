"""External data is found inside of the model's folder, and nothing else is ever opened."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

import tilewright
from tilewright import Builder, f32
from tilewright.graph.diagnostics import MOST_OF_A_CODE, ModelError
from tilewright.graph.location import NodeLocation
from tilewright.importers.onnx.external import ExternalFiles, resolve_external

PATH, MISSING, RANGE = "onnx/external-path", "onnx/external-missing", "onnx/external-range"

needs_links = pytest.mark.skipif(os.name == "nt", reason="symbolic links need a privilege on Windows")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with 100 bytes of data in it, and a secret beside the folder."""
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "w.bin").write_bytes(bytes(range(100)))
    (folder / "sub" / "v.bin").write_bytes(bytes(50))
    (tmp_path / "secret").write_bytes(bytes(100))
    return folder


@pytest.mark.parametrize(
    ("offset", "length", "expected", "place"),
    [
        (None, None, None, (0, 100)),
        ("0", "100", 999, (0, 100)),
        ("40", "60", None, (40, 60)),
        (40, 10, None, (40, 10)),
        ("40", None, 8, (40, 8)),
        ("40", None, None, (40, 60)),
        ("100", "0", None, (100, 0)),
        ("100", None, None, (100, 0)),
    ],
)
def test_ranges(folder: Path, offset: object, length: object, expected: int | None, place: tuple[int, int]) -> None:
    found = resolve_external(folder, "w.bin", offset, length, expected)  # type: ignore[arg-type]
    assert found == (folder.resolve() / "w.bin", *place)


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        ("0", "101", None),
        ("101", "0", None),
        ("101", None, None),
        ("100", "1", None),
        ("50", None, 51),
        ("-1", "10", None),
        ("0", "-1", None),
        (-1, 10, None),
        ("ten", "10", None),
        ("0x10", "10", None),
        ("1_0", "10", None),
        (" 1", "10", None),
        ("", "10", None),
        ("1.0", "10", None),
        ("\u0661", "10", None),
        ("9" * 19, "9" * 19, None),
        ("9" * 5000, "10", None),
        (b"\xff", "10", None),
    ],
)
def test_impossible_ranges(folder: Path, offset: object, length: object, expected: int | None) -> None:
    with pytest.raises(ModelError) as caught:
        resolve_external(folder, "w.bin", offset, length, expected)  # type: ignore[arg-type]
    assert caught.value.code == RANGE


def test_subfolders_are_inside(folder: Path) -> None:
    for location in ("sub/v.bin", "./sub//v.bin", "sub/./v.bin"):
        assert resolve_external(folder, location) == (folder.resolve() / "sub" / "v.bin", 0, 50)


@pytest.mark.parametrize(
    "location",
    [
        "../secret",
        "sub/../../secret",
        "sub/../w.bin",
        "..",
        "..\\secret",
        "/etc/passwd",
        "//server/share/w.bin",
        "\\\\server\\share\\w.bin",
        "C:\\w.bin",
        "C:w.bin",
        "\\w.bin",
        "",
        ".",
        "w.bin\0",
        b"\xff.bin",
    ],
)
def test_unsafe_locations(folder: Path, location: str) -> None:
    with pytest.raises(ModelError) as caught:
        resolve_external(folder, location)
    assert caught.value.code == PATH


def test_unsafe_locations_are_refused_unseen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError("the disk was looked at")

    files = ExternalFiles(folder)
    for name in ("realpath", "isfile"):
        monkeypatch.setattr(os.path, name, forbidden)
    monkeypatch.setattr(os, "stat", forbidden)
    with pytest.raises(ModelError, match="absolute"):
        files.resolve("/etc/passwd")


def test_what_is_no_readable_file_is_missing(folder: Path) -> None:
    for location in ("nothing.bin", "sub", "w.bin/x", "n" * 5000):
        with pytest.raises(ModelError) as caught:
            resolve_external(folder, location)
        assert caught.value.code == MISSING


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and sockets in the file system")
def test_pipes_and_sockets_are_not_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "pipe")
    monkeypatch.chdir(folder)  # a socket's name must be short
    with socket.socket(socket.AF_UNIX) as endpoint:
        endpoint.bind("socket")
        for location in ("pipe", "socket"):
            with pytest.raises(ModelError, match="no file") as caught:
                resolve_external(folder, location)
            assert caught.value.code == MISSING


@needs_links
def test_links_inside_of_the_folder_are_followed(folder: Path) -> None:
    (folder / "link.bin").symlink_to("w.bin")
    (folder / "also").symlink_to("sub")
    assert resolve_external(folder, "link.bin").path == folder.resolve() / "w.bin"
    assert resolve_external(folder, "also/v.bin").path == folder.resolve() / "sub" / "v.bin"


@needs_links
def test_links_out_of_the_folder_are_refused(folder: Path) -> None:
    (folder / "file").symlink_to("../secret")
    (folder / "parent").symlink_to("..")
    (folder / "chain").symlink_to("file")
    (folder.parent / "model2").mkdir()  # a neighbour whose name starts like the folder's
    (folder.parent / "model2" / "w.bin").touch()
    (folder / "neighbour").symlink_to("../model2/w.bin")
    for location in ("file", "parent/secret", "chain", "neighbour"):
        with pytest.raises(ModelError, match="out of the model's folder") as caught:
            resolve_external(folder, location)
        assert caught.value.code == PATH
    (folder / "circle").symlink_to("circle")
    with pytest.raises(ModelError) as caught:
        resolve_external(folder, "circle")
    assert caught.value.code == MISSING


@needs_links
def test_the_folder_itself_may_be_a_link(folder: Path) -> None:
    (folder.parent / "alias").symlink_to("model")
    assert resolve_external(folder.parent / "alias", "w.bin").path == folder.resolve() / "w.bin"


@needs_links
def test_a_cache_of_blobs_works(tmp_path: Path) -> None:
    """Hugging Face's layout: model and data are links from a snapshot's folder into one folder of blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "1111").touch()
    (blobs / "2222").write_bytes(bytes(10))
    (snapshot / "model.onnx").symlink_to("../../../blobs/1111")
    (snapshot / "model.onnx_data").symlink_to("../../../blobs/2222")
    found = ExternalFiles.beside(snapshot / "model.onnx").resolve("model.onnx_data")
    assert found == (blobs.resolve() / "2222", 0, 10)
    (tmp_path / "secret").touch()
    (snapshot / "other").symlink_to("../../../secret")
    with pytest.raises(ModelError, match="out of the model's folder"):
        ExternalFiles.beside(snapshot / "model.onnx").resolve("other")


def test_relative_model_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert ExternalFiles.beside("m.onnx").resolve("w.bin").path == folder.resolve() / "w.bin"


def test_bytes_have_no_folder() -> None:
    with pytest.raises(ModelError, match="load the model by its path") as caught:
        resolve_external(None, "w.bin")
    assert caught.value.code == PATH


def test_tensors(folder: Path) -> None:
    tensor = TensorProto(name="weights", data_location=TensorProto.EXTERNAL)
    files, where = ExternalFiles(folder), NodeLocation("conv", 3)
    with pytest.raises(ModelError, match=r"'weights'.*not named"):
        files.of_tensor(tensor)
    for key, value in (("location", "w.bin"), ("offset", "8"), ("checksum", "f00"), ("length", "4"), ("offset", "12")):
        tensor.external_data.add(key=key, value=value)
    assert files.of_tensor(tensor) == (folder.resolve() / "w.bin", 12, 4)
    tensor.external_data.add(key="length", value="1000")
    with pytest.raises(ModelError, match=r"'weights' is bytes 12 to 1,012 of 'w\.bin', which has 100") as caught:
        files.of_tensor(tensor, where=where)
    assert caught.value.diagnostics[0].location is where


def test_each_file_is_checked_once(folder: Path) -> None:
    files = ExternalFiles(folder)
    first = files.resolve("w.bin", 0, 10)
    (folder / "w.bin").unlink()
    assert files.resolve("w.bin", 10, 10).path == first.path


def test_a_missing_file_is_told_for_a_few_tensors(tmp_path: Path) -> None:
    """All of them are in the error's `diagnostics`."""
    b = Builder()
    x = b.input("x", f32[1024])
    for index in range(MOST_OF_A_CODE + 3):
        x = x + b.const(np.full(1024, index, np.float32), name=f"w{index}")
    b.output(x, "y")
    tilewright.save(b.build(), tmp_path / "model.onnx", external=True)
    [data] = [path for path in tmp_path.iterdir() if path.suffix != ".onnx"]
    data.unlink()
    with pytest.raises(ModelError) as caught:
        tilewright.load(tmp_path / "model.onnx")
    assert len(caught.value.diagnostics) == MOST_OF_A_CODE + 3
    text = str(caught.value)
    assert text.count("error[onnx/external-missing]") == MOST_OF_A_CODE
    assert text.endswith("  and 3 more of onnx/external-missing")
