"""The payoff ledger of `tilewright optimize --ledger`: traced, read back, shown."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.padding import Padding

from tilewright.passes.cost import UNKNOWN_SIZE, Cost, ModelCost
from tilewright.passes.ledger import ledger_of
from tilewright.passes.trace import read_trace
from tilewright.tools._show import console, scaled, table

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tilewright.passes.ledger import Ledger


def trace_folder(given: str | None, ledger: bool, stack: ExitStack) -> str | None:
    """Where to trace to: the folder of --trace, else for --ledger one that vanishes when `stack` is closed."""
    if given is not None or not ledger:
        return given
    return stack.enter_context(tempfile.TemporaryDirectory(prefix="tilewright-trace-"))


def read_ledger(folder: str | Path) -> Ledger:
    return ledger_of(read_trace(folder))


# Inference changes no node: it finds sizes, which then count as what they are.
_LABELS = {"infer-shapes": "sizes found"}


def show_ledger(ledger: Ledger, written: int | None = None) -> None:
    """A row for the model before, for what each pass changed, and for the model after.

    `written` is the number of nodes in the file, where fused ones may be several.
    """
    made = table("ledger", "nodes", "arithmetic", "moved, each node alone", "moved, fused", "per element")
    before, after = ledger.operations
    made.add_row("before", f"{before:,}", *_cells(ledger.before, sign=False))
    for row in ledger.rows:
        if not row.operations and row.cost == ModelCost(Cost(), Cost()):
            continue
        label, nodes = _LABELS.get(row.name, row.name), f"{row.operations:+,}" if row.operations else ""
        made.add_row(f"  {label}", nodes, *_cells(row.cost, sign=True), "")
    made.add_row("after", f"{after:,}", *_cells(ledger.after, sign=False))
    if written is not None and written != after:
        made.add_row("  written as parts", f"{written - after:+,}", "", "", "", "")
        made.add_row("in the file", f"{written:,}", "", "", "", "")
    out = console()
    out.print(Padding(made, (1, 0, 0, 0), expand=False))
    out.print(
        f"         moved: bytes read and written; fused: as kernels that take elementwise work along; per element:\n"
        f"         operations for each element moved, fused; a size that is not known counts as {UNKNOWN_SIZE}\n"
    )


def _cells(cost: ModelCost, sign: bool) -> list[str]:
    numbers = [cost.alone.flops, cost.alone.moved, cost.fused.moved]
    units = ["", "B", "B"]
    if sign:
        return [f"{'+' if n > 0 else ''}{scaled(n)}{unit}" if n else "" for n, unit in zip(numbers, units, strict=True)]
    return [*(f"{scaled(n)}{unit}" for n, unit in zip(numbers, units, strict=True)), f"{cost.fused.intensity:.3g}"]
