"""tilewright cache and tilewright machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewright.backends.cpu.cache import DiskCache


@pytest.mark.usefixtures("unchecked")
def test_entries_are_counted_and_cleared(
    command: Callable[..., Any], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kernels"
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(folder))
    assert command("run", model, "--dim", "batch=2").code == 0
    found = json.loads(command("cache", "--json").out)
    assert found["folder"] == str(folder)
    assert found["entries"] == len(list(folder.iterdir())) > 0
    assert found["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    done = command("cache", "--clear")
    assert f"removed {found['entries']}" in done.out
    assert list(folder.iterdir()) == []


def test_no_cache(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    assert "no kernels are kept" in command("cache").out


def test_the_cache_stays_bounded(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, max_bytes=10_000)
    for index in range(64):
        cache.write(f"{index:064x}", bytes(500))
    assert cache.bytes_used() <= 10_000


def test_machine(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_VECTOR_BITS", "128")
    facts = json.loads(command("machine", "--json").out)
    assert facts["vector_bits"] == 128
    assert facts["threads"] >= 1
    assert "vector_bits" in command("machine").out
