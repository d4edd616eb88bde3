"""How commands show things: numbers for people, tables, progress, JSON."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tilewright.graph.diagnostics import Diagnostic

if TYPE_CHECKING:
    from tilewright.backends.parity import ParityReport

# Where output is not a terminal there is no width to fit into; tables should not wrap names then.
PIPE_WIDTH = 160


def console(stderr: bool = False) -> Console:
    """A console that does not guess at colours of its own; wide where it is not a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(file=stream, highlight=False, emoji=False, markup=False, width=width)


def print_json(value: Any) -> None:
    """One JSON document on standard output; NaN and infinities, which JSON lacks, as text."""
    print(json.dumps(_finite(value), indent=2, ensure_ascii=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def size_text(count: int) -> str:
    """`12.3 MB`: bytes in decimal units, as disks and downloads count them."""
    return f"{scaled(count)}B"


def count_text(count: int) -> str:
    """`25.6 M`: a large number in short."""
    return scaled(count).strip()


def scaled(number: float) -> str:
    """The number with a unit prefix, `25.6 M`; a plain number below a thousand."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5 or prefix == "T":
            digits = 0 if not prefix or abs(number) >= 99.95 else 1
            return f"{number:.{digits}f} {prefix}"
        number /= 1000
    raise AssertionError("the last prefix takes every number")


def duration_text(seconds: float) -> str:
    """`2.41 s`, `83.5 ms`, `0.0164 ms`."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def change_text(before: int, after: int) -> str:
    """`-31 %`; empty where nothing changed."""
    if before == after:
        return ""
    if not before:
        return f"+{after:,}"
    percent = 100 * (after - before) / before
    return f"{percent:+.0f} %" if abs(percent) >= 1 else f"{percent:+.1g} %"


def table(*columns: str, title: str = "") -> Table:
    """An empty table: the first column to the left, numbers to the right."""
    made = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False, show_edge=False)
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index == 0 or column.startswith("<") else "right", overflow="fold")
        if column.startswith("<"):
            made.columns[-1].header = column[1:]
    return made


def show_parity(parity: ParityReport) -> None:
    """The verdict, a row for each output, and notes."""
    out = console()
    colour = {"agrees": "green", "differs": "red"}.get(parity.verdict, "yellow")
    out.print(Text.assemble("parity   ", (parity.verdict, colour), f": {verdict_text(parity)}"))
    if parity.worst:
        out.print(Padding(parity_table(parity), (1, 0, 1, 9), expand=False))
    for note in parity.notes:
        out.print(f"note     {note}")


def verdict_text(parity: ParityReport) -> str:
    """The verdict's explanation in one sentence."""
    if parity.verdict != "agrees":
        return parity.reason
    chosen = [run.inputs for run in parity.runs if run.inputs]
    runs = f"{len(parity.runs)} run{'s' if len(parity.runs) > 1 else ''}"
    where = f" ({'; '.join(chosen)})" if chosen and sum(map(len, chosen)) < 120 else ""
    return f"{parity.actual} gives what {parity.expected} gives, in {runs}{where}"


def parity_table(report: ParityReport) -> Table:
    """A row for each output: its type, how far apart the two sides are, and how far they may be."""
    made = table("output", "<type", "error / largest", "allowed", "<")
    for name, found in report.worst.items():
        error = "equal" if found.error is None else f"{found.relative_error:.2g}"
        allowed = "equal" if found.tolerance == 0 else f"{found.tolerance:.2g}"
        if found.random:
            error, allowed = "random", "same type"
        verdict = Text("ok", style="green") if found.passed else Text(found.reason, style="red")
        made.add_row(name, found.type, error if found.passed or found.error is not None else "-", allowed, verdict)
    return made


def show_diagnostics(found: list[Diagnostic], limit: int = 8) -> None:
    """Warnings on standard error, the first few in full."""
    warnings = [each for each in found if each.severity == "warning"]
    out = console(stderr=True)
    for each in warnings[:limit]:
        out.print(Text(each.render(), style="yellow"))
    if len(warnings) > limit:
        out.print(f"... and {len(warnings) - limit} more warnings")


def write_text(path: Path, text: str) -> None:
    """Write a file all or nothing: under a temporary name first, then renamed. An OSError names `path`."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)  # closed by now: Windows removes no open file
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
        raise


class Stopwatch:
    """Seconds by the name of what was done."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
