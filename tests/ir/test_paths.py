"""Files that are not there, and places where none can be written."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilewright
from tilewright import Builder, f32
from tilewright.graph.diagnostics import ModelError, UsageError
from tilewright.graph.paths import check_folder, check_kind, check_source, check_target


def test_a_missing_file_names_one_like_it(tmp_path: Path) -> None:
    (tmp_path / "data.npz").touch()
    check_source(tmp_path / "data.npz")
    with pytest.raises(UsageError, match=r"there is no file .*date.npz") as error:
        check_source(tmp_path / "date.npz")
    assert error.value.code == "file/missing"
    assert error.value.diagnostics[0].notes == (f"did you mean {tmp_path / 'data.npz'}?",)
    with pytest.raises(ModelError, match=r"no file") as far:
        check_source(tmp_path / "nowhere" / "x", ModelError)
    assert far.value.diagnostics[0].notes == ()
    with pytest.raises(UsageError, match=r"is a folder, not a file"):
        check_source(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "the chart .* is a folder"),
        ("there", "there is a folder"),
        ("there/", "there is a folder"),
        ("new/", "new/ is a folder that does not exist"),
        ("new/out", "the folder of the chart, .*new, does not exist"),
        ("file/out", "the folder of the chart, .*file, does not exist"),
    ],
)
def test_where_nothing_can_be_written(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    check_target(tmp_path / "new")
    check_target(tmp_path / "file")
    with pytest.raises(UsageError, match=message) as error:
        check_target(f"{tmp_path}/{name}", "chart")
    assert error.value.code == "file/output"


def test_a_name_for_another_kind_of_file() -> None:
    for fine in ("model.twx", "model.bin", "model"):
        check_kind(fine, ".twx")
    with pytest.raises(UsageError, match=r"model.onnx is a name for an ONNX model") as error:
        check_kind(Path("model.onnx"), ".twx")
    assert error.value.code == "file/output"
    with pytest.raises(UsageError, match=r"model.TW is a name for IR text, but an ONNX model is written"):
        check_kind("model.TW", ".onnx")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for fine in (None, tmp_path, tmp_path / "new"):
        check_folder(fine, "--trace")
    with pytest.raises(UsageError, match=r"--trace .*file is a file, not a folder"):
        check_folder(tmp_path / "file", "--trace")


def test_save_names_a_folder_that_is_in_its_way(tmp_path: Path) -> None:
    builder = Builder("m")
    builder.output(builder.relu(builder.input("x", f32[2])), "y")
    module = builder.build()
    with pytest.raises(UsageError, match=r"the output .* is a folder"):
        tilewright.save(module, tmp_path)
    with pytest.raises(UsageError, match=r"the folder of the output, .*new, does not exist"):
        tilewright.save(module, tmp_path / "new" / "m.onnx")
    assert list(tmp_path.iterdir()) == []
