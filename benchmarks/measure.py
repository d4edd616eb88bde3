"""Timing of whole processes: interleaved runs, medians, peak memory. Used by the benchmarks beside it."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Sample:
    """What several runs of one command took: wall seconds each, the largest resident set in bytes, and failures."""

    seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    error: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds) if self.seconds else float("nan")


def run_once(command: Sequence[str], sample: Sample) -> None:
    """Run `command`, add its wall time and peak resident set to `sample`; remember the last line of a failure."""
    # Old OpenBLAS builds are slowed down by these; a figure should not depend on them.
    environment = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, text=True)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    elapsed = time.perf_counter() - started
    if process.returncode != 0:
        sample.error = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        return
    sample.seconds.append(elapsed)
    sample.peak_bytes = max(sample.peak_bytes, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def interleave(commands: dict[str, Sequence[str]], repeat: int, between: Callable[[], None]) -> dict[str, Sample]:
    """Run all commands in turn, `repeat` times, after one unmeasured round that fills the file cache."""
    samples = {name: Sample() for name in commands}
    for round_index in range(repeat + 1):
        for name, command in commands.items():
            if samples[name].error:
                continue
            between()
            run_once(command, samples[name] if round_index else Sample())
    return samples


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=title)
    for index, column in enumerate(columns):
        shown.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        shown.add_row(*row)
    Console(width=160).print(shown)


def maximum_rss() -> int:
    """Peak resident set of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def megabytes(count: float) -> str:
    return f"{count / 1e6:,.0f} MB"


def file_size(path: Path) -> int:
    """Bytes of a model and of the external data beside it."""
    return sum(p.stat().st_size for p in (path, Path(f"{path}.data")) if p.exists())
