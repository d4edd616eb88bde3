"""Time and memory of whole processes: interleaved runs, medians, peaks. Used by the benchmarks beside it."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

# Old OpenBLAS builds are slowed down by the first two. The third makes Python compile every source file in every run,
# which no installed package does. A figure should depend on none of them.
LEFT_OUT = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONDONTWRITEBYTECODE")
# Between two looks at the memory of a process.
WATCH_SECONDS = 0.002


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
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=_environment(), text=True
    )
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


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in LEFT_OUT}


class PeakMemory(NamedTuple):
    """Bytes that a process held at most: `private` is its own memory, `resident` has pages of mapped files, too.

    Pages of a mapped file are the system's to drop whenever memory is short, so they say little about what is needed.
    """

    private: int
    resident: int


def peak_memory(command: Sequence[str]) -> PeakMemory:
    """Run `command` and watch its memory (Linux). Raises RuntimeError if it fails."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment())
    private = resident = 0
    while process.poll() is None:
        found = _memory_status(process.pid)
        private = max(private, found.get("RssAnon", 0))
        resident = found.get("VmHWM", resident)
        time.sleep(WATCH_SECONDS)
    if process.returncode != 0:
        raise RuntimeError(f"exit code {process.returncode} from {' '.join(command)}")
    return PeakMemory(private, resident)


def _memory_status(pid: int) -> dict[str, int]:
    """What /proc says about the memory of a process, in bytes (proc(5)); nothing for one that has ended.

    `RssAnon` is memory behind which there is no file, `VmHWM` the largest resident set so far.
    """
    fields = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields if field[-1] == "kB"}


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


def megabytes(count: float) -> str:
    return f"{count / 1e6:,.0f} MB"


def file_size(path: Path) -> int:
    """Bytes of a model and of the external data beside it."""
    return sum(p.stat().st_size for p in (path, Path(f"{path}.data")) if p.exists())
