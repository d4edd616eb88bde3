"""Compiled kernels on disk: content-addressed, checked when read, bounded in size, safe for concurrent processes.

An entry is named by the SHA-256 of the LLVM IR, the machine and the versions that made it, and holds the SHA-256 of its
own content. It is machine code, so the folder must be this user's alone: one that others may write to is not used.

`TILEWRIGHT_CACHE` names the folder; "off" means no cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import warnings
from functools import cache
from pathlib import Path

from .machine import Machine

CACHE_VARIABLE = "TILEWRIGHT_CACHE"
MAX_BYTES = 256 << 20
# The size of all entries is looked at again when a process has written this part of what there may be.
LOOK_AFTER = 1 / 16
_SUFFIX = ".object"
_DIGEST = 32


class CacheWarning(UserWarning):
    """The folder of compiled kernels cannot be used, so that they are compiled again in each process."""


class DiskCache:
    """Object code by key. Whatever goes wrong with the disk is as if an entry were missing."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._written: int | None = None  # bytes since all entries were looked at
        self._total = 0

    def read(self, key: str) -> bytes | None:
        """The code stored under `key`; None if there is none, or if it is damaged (then it is removed)."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        if len(content) <= _DIGEST or hashlib.sha256(content[_DIGEST:]).digest() != content[:_DIGEST]:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # so that what is used stays
        return content[_DIGEST:]

    def write(self, key: str, code: bytes) -> None:
        """Store `code`: under a temporary name, then renamed, so that no reader meets half of it."""
        temporary = None
        try:
            handle, temporary = tempfile.mkstemp(dir=self.folder)
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            os.replace(temporary, self._path(key))
        except OSError:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
            return
        # Looking at all entries takes time, so not after each of them; other processes write, too.
        self._total += len(code) + _DIGEST
        is_first = self._written is None
        self._written = (self._written or 0) + len(code) + _DIGEST
        if is_first or self._total > self.max_bytes or self._written > LOOK_AFTER * self.max_bytes:
            self._written = 0
            self._shrink()

    def clear(self) -> int:
        """Remove all entries; how many there were."""
        entries = self._entries()
        for _, _, path in entries:
            with contextlib.suppress(OSError):
                path.unlink()
        return len(entries)

    def count(self) -> int:
        """How many entries there are."""
        return len(self._entries())

    def bytes_used(self) -> int:
        return sum(size for _, size, _ in self._entries())

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _entries(self) -> list[tuple[float, int, Path]]:
        """When each was used last, its size, and its place."""
        found = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        return found

    def _shrink(self) -> None:
        """Remove what was not used for longest until the rest fits."""
        entries = sorted(self._entries())
        self._total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if self._total <= self.max_bytes:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            self._total -= size


def key_of(text: str, machine: Machine) -> str:
    """What names the code that `text` compiles to on `machine`."""
    import llvmlite

    from ... import __version__

    parts = (text, machine.key, llvmlite.__version__, __version__)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def default_cache() -> DiskCache | None:
    """The user's cache, its folder made if need be; None if it is switched off or its folder cannot be trusted."""
    folder = cache_folder()
    if folder is None:
        return None
    problem = prepare(folder)
    if problem:
        # All callers are one place to warn at, so that a user is told once.
        warnings.warn(f"kernels are not kept on disk: {problem}", CacheWarning, stacklevel=1)
        return None
    return _of_process(folder)


@cache
def _of_process(folder: Path) -> DiskCache:
    """One for all executables, so that what is there is looked at once rather than for each of them."""
    return DiskCache(folder)


def cache_folder() -> Path | None:
    """Where the user's cache is, or will be; None if it is switched off."""
    chosen = os.environ.get(CACHE_VARIABLE, "")
    if chosen.lower() == "off":
        return None
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("tilewright", appauthor=False)) / "kernels"


def prepare(folder: Path) -> str:
    """Make `folder`, for this user alone. Why it cannot be used, or an empty text."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        return f"{folder} cannot be made: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is not a folder"
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        return f"{folder} belongs to another user"
    if os.name == "posix" and status.st_mode & 0o077:
        return f"{folder} is open to other users; `chmod 700` it"
    return ""
