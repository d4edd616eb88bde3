"""How long a training step takes and how much memory, beside PyTorch on the CPU.

    python benchmarks/train.py --peer PYTHON [--only resnet18] [--threads 1,2] [--rounds 9]
    python benchmarks/train.py --derive

PYTHON is the interpreter of another environment that has torch. Each side is a process of its own, which trains on
the same batches from the same parameters; they take turns, and medians are compared. The first losses have to agree, so
that it is the same work. PyTorch is used at its best: fused optimizers, channels-last images, and `torch.compile`
besides eager where it can run, for which it needs a C++ compiler; where it cannot, the table has gaps and what it said
stands below.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
from measure import LEFT_OUT, table
from train_models import TASKS, Task, batch_of, step_of

import tilewright
from tilewright import train

HERE = Path(__file__).parent
BATCHES = 4
# Steps whose losses have to agree, and to how much.
COMPARED, TOLERANCE = 5, 1e-4
# How long a turn of one side is.
TURN_SECONDS = 0.3


class SideError(Exception):
    """A side ended; its last words."""


@dataclass
class Side:
    """A process that trains, and what it has told so far."""

    name: str
    command: list[str]
    clock: str = "seconds"  # or processor_seconds
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    before_bytes: int = 0
    ready_s: float = 0.0
    first_s: float = 0.0
    failure: str = ""

    def start(self, threads: int) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
        environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - for as long as the process runs
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=environment
        )
        facts = self.answer()
        self.ready_s, self.before_bytes = facts["ready_s"], facts["before_bytes"]

    def answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            lines = self.errors.read().strip().splitlines() or ["it ended"]
            raise SideError(next((line for line in reversed(lines) if "Error" in line), lines[-1]))
        return json.loads(line)

    def steps(self, count: int) -> list[float]:
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        facts = self.answer()
        self.losses += facts["losses"]
        self.peak_bytes = facts["peak_bytes"]
        return facts[self.clock]

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()

    @property
    def median(self) -> float:
        return statistics.median(self.seconds) if self.seconds else math.nan


def write_inputs(task: Task, path: Path) -> None:
    """The file that all sides read."""
    random = np.random.default_rng(0)
    arrays = {}
    for index in range(BATCHES):
        batch = batch_of(task, random)
        arrays |= {f"x{index}": batch["x"], f"target{index}": batch["target"]}
    _, parameters = step_of(task)
    arrays |= {f"p{index}": array for index, array in enumerate(parameters.values())}
    np.savez(path, **arrays)


def measure(
    name: str, threads: int, rounds: int, peer: str | None, modes: list[str], clock: str, path: Path
) -> list[Side]:
    """Let all sides train in turn. A peer's side that cannot has `failure` and no times."""
    task = TASKS[name]
    write_inputs(task, path)
    sides = [Side("tilewright", [sys.executable, str(HERE / "train_ours.py"), name, str(path), str(threads)], clock)]
    given = [task.network, str(path), str(threads)]
    for mode in modes:
        command = [peer, str(HERE / "train_peer.py"), *given, mode, task.optimizer, str(task.rate)]
        sides.append(Side(mode, command, clock))
    counts: dict[str, int] = {}
    for side in sides:
        try:
            side.start(threads)
            started = time.perf_counter()
            side.steps(COMPARED)
            side.first_s = time.perf_counter() - started
            counts[side.name] = max(1, min(200, int(TURN_SECONDS / statistics.median(side.steps(3)))))
        except SideError as error:
            if side is sides[0]:
                raise
            side.failure = str(error)
    at_work = [side for side in sides if not side.failure]
    for _ in range(rounds):
        for side in at_work:
            # The first step meets what the others left in the caches.
            side.seconds += side.steps(counts[side.name] + 1)[1:]
    for side in at_work:
        side.end()
    return sides


def disagreement(ours: Side, theirs: Side) -> float:
    """How far the first losses lie apart, relative to the peer's."""
    pairs = zip(ours.losses[:COMPARED], theirs.losses[:COMPARED], strict=True)
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in pairs)


@click.command()
@click.option("--peer", help="Python of an environment with torch.")
@click.option("--only", multiple=True, help="Only tasks whose name begins so.")
@click.option("--threads", "thread_counts", default="1,2", show_default=True)
@click.option("--rounds", default=9, show_default=True)
@click.option("--compile/--no-compile", "compiled", default=True, help="Compare with torch.compile, too.")
@click.option("--processor-time", is_flag=True, help="Compare what the processes use, if others are at work here, too.")
@click.option("--derive", is_flag=True, help="Time deriving and optimizing BERT-base's training step, nothing else.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write what was measured.")
def main(
    peer: str | None,
    only: tuple[str, ...],
    thread_counts: str,
    rounds: int,
    compiled: bool,
    processor_time: bool,
    derive: bool,
    json_path: Path | None,
) -> None:
    """Time training steps against PyTorch."""
    if derive:
        derived()
        return
    modes = ["eager", "compile"] if peer else []
    if "compile" in modes and not compiled:
        modes.remove("compile")
    if "compile" in modes and not shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")):
        print("torch.compile cannot run: there is no g++ here, nor is another C++ compiler named by CXX")
        modes.remove("compile")
    clock = "processor_seconds" if processor_time else "seconds"
    names = [name for name in TASKS if not only or name.startswith(only)]
    found, wrong = [], []
    with tempfile.TemporaryDirectory() as folder:
        for threads in map(int, thread_counts.split(",")):
            rows, ratios = [], {mode: [] for mode in modes}
            for name in names:
                try:
                    ours, *peers = measure(name, threads, rounds, peer, modes, clock, Path(folder) / "inputs.npz")
                except SideError as error:
                    wrong.append(f"{name}: {error}")
                    continue
                row = [name, f"{1e3 * ours.median:.3f}"]
                for side in peers:
                    if side.failure:
                        wrong.append(f"{name}: {side.name} could not run: {side.failure}")
                        row += ["-", "-"]
                        continue
                    ratio = side.median / ours.median
                    ratios[side.name].append(ratio)
                    row += [f"{1e3 * side.median:.3f}", f"{ratio:.2f}x"]
                    if not disagreement(ours, side) <= TOLERANCE:
                        wrong.append(f"{name}: losses {ours.losses[:COMPARED]}, {side.name} {side.losses[:COMPARED]}")
                row += [memory_of(side) for side in (ours, *peers)]
                rows.append(row)
                found += [facts(name, threads, side) for side in (ours, *peers) if not side.failure]
                # A run that is cut short has told what it measured.
                print(
                    f"{name}, {threads} threads: {'; '.join(map(in_short, (ours, *peers)))}",
                    file=sys.stderr,
                    flush=True,
                )
                if json_path is not None:
                    json_path.write_text(json.dumps(found, indent=1))
            means = [["", f"{geometric_mean(ratios[mode]):.2f}x" if ratios[mode] else "-"] for mode in modes]
            rows.append(["geometric mean", "", *(cell for pair in means for cell in pair)])
            heads = [head for mode in modes for head in (mode, "ratio")]
            heads += [f"MB, {side}" for side in ("tilewright", *modes)]
            table(
                f"training step, milliseconds, {threads} threads; memory at most (beyond imports and data)",
                ["task", "tilewright", *heads], rows,
            )  # fmt: skip
    for line in wrong:
        print(f"wrong: {line}")
    sys.exit(bool(wrong))


def derived() -> None:
    """From BERT-base, its sizes open, to a training step, and to an optimized one."""
    sys.path.insert(0, str(HERE.parent / "examples"))
    from zoo.build import build

    model = build("bert_base", "n", size="length")
    started = time.process_time()
    step = train.step(model, loss="mse", optimizer=train.Adam(1e-4), output="pooled")
    made = time.process_time()
    counts = [operations(model), operations(step)]
    began = time.process_time()
    tilewright.optimize(step)
    optimized = time.process_time() - began
    rows = [
        ["derive", f"{made - started:.2f}", f"{counts[0]:,} -> {counts[1]:,}"],
        ["optimize", f"{optimized:.2f}", f"{counts[1]:,} -> {operations(step):,}"],
        ["both", f"{made - started + optimized:.2f}", ""],
    ]
    table("BERT-base's training step, seconds of processor time", ["", "seconds", "operations"], rows)


def operations(module: tilewright.Module) -> int:
    return sum(1 for op in module.main.block if op.name != "const")


def facts(name: str, threads: int, side: Side) -> dict:
    return {
        "task": name, "threads": threads, "side": side.name, "median_ms": 1e3 * side.median,
        "least_ms": 1e3 * min(side.seconds), "peak_bytes": side.peak_bytes, "before_bytes": side.before_bytes,
        "ready_s": side.ready_s, "losses": side.losses[:COMPARED],
    }  # fmt: skip


def in_short(side: Side) -> str:
    """What a side of a task took, and how long it was until it could begin."""
    if side.failure:
        return f"{side.name} -"
    return f"{side.name} {1e3 * side.median:.3f} ms (ready in {side.ready_s + side.first_s:.1f} s)"


def memory_of(side: Side) -> str:
    if side.failure:
        return "-"
    return f"{side.peak_bytes / 1e6:.0f} ({(side.peak_bytes - side.before_bytes) / 1e6:.0f})"


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


if __name__ == "__main__":
    main()
