"""Compiled kernels on disk: found again, checked, bounded, and only in a folder that is the user's own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tilewright.backends.cpu.cache import CacheWarning, DiskCache, default_cache, key_of, prepare
from tilewright.backends.cpu.machine import machine_of_width
from tilewright.backends.cpu.runtime import runtime
from tilewright.graph.dtypes import f32
from tilewright.graph.model_builder import Builder

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runtime()  # what every process needs is not among the kernels that are counted here
    chosen = tmp_path / "kernels"
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(chosen))
    return chosen


def run() -> dict[str, object]:
    b = Builder("m")
    b.output(b.exp(b.input("x", f32[6]) * 2.0), "y")
    executable = tilewright.compile(b.build(), target="cpu", threads=1)
    np.testing.assert_allclose(executable.run({"x": np.zeros(6, np.float32)})["y"], 1)
    return executable.report()


def test_a_second_executable_compiles_nothing(folder: Path) -> None:
    first, second = run(), run()
    assert (first["compiled"], first["loaded"]) == (1, 0)
    assert (second["compiled"], second["loaded"]) == (0, 1)
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_entry_is_compiled_again(folder: Path, damage: bytes | None) -> None:
    run()
    entry = max(folder.iterdir(), key=lambda path: path.stat().st_size)  # the others are links
    content = entry.read_bytes()
    entry.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if damage is None else damage)
    assert run()["compiled"] == 1
    assert entry.read_bytes() == content


def test_the_cache_can_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    assert default_cache() is None
    assert run()["loaded"] == 0


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_a_folder_that_others_may_use_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with pytest.warns(CacheWarning, match="open to other users"):
        assert default_cache() is None


def test_a_link_or_a_file_in_the_folder_s_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert "not a folder" in prepare(tmp_path / "link")
    (tmp_path / "file").write_text("")
    assert prepare(tmp_path / "file")


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, max_bytes=400)
    for age, key in enumerate("abc"):
        cache.write(key, bytes(100))
        os.utime(tmp_path / f"{key}.object", (age, age))
    assert cache.read("a") is not None  # used just now
    cache.write("d", bytes(100))
    assert [cache.read(key) is not None for key in "abcd"] == [True, False, True, True]
    assert cache.bytes_used() <= 400
    assert cache.clear() == 3


def test_a_disk_that_fails_is_no_error(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "gone")
    cache.write("a", b"code")
    assert cache.read("a") is None


def test_the_key_depends_on_code_and_machine() -> None:
    wide, narrow = machine_of_width(256), machine_of_width(128)
    assert len({key_of("a", wide), key_of("b", wide), key_of("a", narrow)}) == 3
