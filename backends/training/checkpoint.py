"""Checkpoints: a training state and how far the loop was, in one file that is either whole or the one before."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...graph import dtypes
from ...graph.diagnostics import UsageError
from ...graph.paths import check_source, check_target

FORMAT = 1
_FACTS = "tilewright.json"


@dataclass
class Checkpoint:
    """What a loop needs to go on: `state`, the `epoch` (from 0), how many of its batches are done, all losses.

    `facts`, which JSON can hold, say what else the run depends on, so that one that goes on can be compared.
    """

    state: dict[str, np.ndarray]
    epoch: int = 0
    batch: int = 0
    losses: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Write `path` so that at every moment it is a whole checkpoint: under another name, flushed, then renamed.

    Raises UsageError if `path` cannot be a file, OSError naming it if the disk refuses.
    """
    target = Path(path)
    check_target(path, "checkpoint")
    arrays = {f"state/{index}": _plain(array) for index, array in enumerate(checkpoint.state.values())}
    names = [[name, dtypes.from_numpy(array.dtype).name] for name, array in checkpoint.state.items()]
    facts = {"format": FORMAT, "state": names, "epoch": checkpoint.epoch, "batch": checkpoint.batch}
    facts["facts"] = checkpoint.facts
    arrays["losses"] = np.array(checkpoint.losses, np.float64)
    arrays[_FACTS] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    # One name, so that a process which is killed while it writes leaves one file, and the next one none.
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, os.fspath(target)) from None
        raise


def check_checkpoint(path: str | os.PathLike[str]) -> None:
    """Raises UsageError if `path` is a file that is no checkpoint, and so should not be overwritten by one."""
    if not Path(path).exists():
        return
    try:
        with zipfile.ZipFile(path) as file:
            is_one = f"{_FACTS}.npy" in file.namelist()
    except (OSError, zipfile.BadZipFile):
        is_one = False
    if not is_one:
        hint = "name another file, or remove it"
        raise UsageError("train/checkpoint", f"{path} is no checkpoint, and stays", notes=[hint])


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Raises UsageError for a file that is no checkpoint or is damaged, OSError for one that cannot be read."""
    check_source(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            facts = json.loads(file[_FACTS].tobytes())
            if facts["format"] != FORMAT:
                raise UsageError("train/checkpoint", f"{path}: format {facts['format']}, this version reads {FORMAT}")
            state = {name: _typed(file[f"state/{index}"], dtype) for index, (name, dtype) in enumerate(facts["state"])}
            done = int(facts["epoch"]), int(facts["batch"]), file["losses"].tolist()
            return Checkpoint(state, *done, facts.get("facts", {}))
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError, TypeError) as error:
        hint = "it is not a checkpoint, or it is damaged; delete it to begin anew"
        raise UsageError("train/checkpoint", f"{path} cannot be read: {error}", notes=[hint]) from None


def _plain(array: np.ndarray) -> np.ndarray:
    """numpy's format knows only numpy's own element types; others are written as their bytes."""
    return array if array.dtype.kind != "V" else np.ascontiguousarray(array).view(np.dtype(f"u{array.itemsize}"))


def _typed(array: np.ndarray, name: str) -> np.ndarray:
    wanted = getattr(dtypes, name if name != "bool" else "bool_").numpy
    return array if array.dtype == wanted else array.view(wanted)
