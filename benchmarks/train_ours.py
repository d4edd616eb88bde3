"""Tilewright's side of benchmarks/train.py: a process that trains when it is told to.

    python benchmarks/train_ours.py TASK FILE THREADS

FILE has the batches and is given the first parameters, for the peers. See `serve` in train_peer.py for what is said.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

# What is imported when it is first needed, so that it counts as imports here as it does on the other side.
import llvmlite.binding  # noqa: F401
from train_models import TASKS, step_of
from train_peer import batches_in, serve

import tilewright.backends.cpu.executable
import tilewright.importers.onnx  # noqa: F401
from tilewright import train


def main(task_name: str, path: str, threads: int) -> None:
    batches = batches_in(path)

    def begin() -> Callable[[Mapping[str, Any]], float]:
        step, _ = step_of(TASKS[task_name])
        return train.Trainer(step, threads=threads).step

    serve(begin, [{"x": x, "target": target} for x, target in batches])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
