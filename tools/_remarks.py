"""What `tilewright optimize --remarks` says: fusions made, near misses, and what was written as its parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.tools._show import console, table

if TYPE_CHECKING:
    from tilewright.graph.diagnostics import Diagnostic
    from tilewright.passes.context import Fusion
    from tilewright.passes.fusions import MissedFusion
    from tilewright.passes.optimize import OptimizeReport

# A near miss of attention is reported whether remarks are asked for or not.
NEAR_ATTENTION = "fuse-attention/near-miss"


@dataclass(frozen=True)
class Remarks:
    """What there is to say of a report; `others` are remarks of passes and of the writer."""

    report: OptimizeReport
    attention: list[Diagnostic]
    others: list[Diagnostic]

    @property
    def fusions(self) -> list[Fusion]:
        return self.report.fusions

    def near_misses(self) -> list[MissedFusion]:
        return self.report.near_misses()

    def to_dict(self) -> dict[str, Any]:
        return {
            "fusions": [fusion.to_dict() for fusion in self.fusions],
            "near_misses": [missed.to_dict() for missed in self.near_misses()],
            "others": [
                {"code": d.code, "message": d.message, "location": str(d.location) if d.location is not None else None}
                for d in self.others
            ],
        }


def remarks_of(report: OptimizeReport) -> Remarks:
    """The remarks of a report, those about attention apart from others and each once."""
    found = {(d.code, d.message, d.location): d for d in report.remarks}.values()
    attention = [d for d in found if d.code == NEAR_ATTENTION]
    return Remarks(report, attention, [d for d in found if d.code != NEAR_ATTENTION])


def show_remarks(remarks: Remarks) -> None:
    """Three tables; an empty one is left out, and a line says that there is nothing to say at all."""
    fused = [(fusion.rule, fusion.summary, str(fusion.location)) for fusion in remarks.fusions]
    misses = remarks.near_misses()
    missed = grouped((miss.rule, miss.reason, _place(miss)) for miss in misses)
    others = [(d.code, d.message, str(d.location) if d.location is not None else "") for d in remarks.others]
    if fused or missed or others:
        console().print()
    for title, columns, rows in [
        (f"fused: {len(fused)}", ("rule", "<what", "<at"), fused),
        (f"near misses: {len(misses)}", ("rule", "<first check that failed", "<at"), missed),
        (f"remarks: {len(others)}", ("code", "<what", "<at"), others),
    ]:
        _show_table(title, columns, rows)
    if not (fused or missed or others):
        console().print("nothing was fused, nothing nearly so")


def _show_table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    made = table(*columns, title=title)
    for row in rows:
        made.add_row(*row)
    console().print(made)
    console().print()


def grouped(rows: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Rows of rule, reason and place, each rule and reason once: the first place, and how many there are."""
    places: dict[tuple[str, str], list[str]] = {}
    for rule, reason, place in rows:
        places.setdefault((rule, reason), []).append(place)
    return [
        (rule, reason, f"{found[0]}; {len(found)} places" if len(found) > 1 else found[0])
        for (rule, reason), found in places.items()
    ]


def _place(missed: MissedFusion) -> str:
    return "; ".join([str(missed.location), *missed.notes])
