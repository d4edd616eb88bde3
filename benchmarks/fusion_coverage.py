"""How many of the places where a fused operator belongs have one: in memory after optimizing, and as written.

    python benchmarks/fusion_coverage.py MODEL_OR_FOLDER ... [--sites SITES.json] [--opset 23] [--json FILE]

What a model should have is known from what torch's exporter says of each node (the ATen operator and the module it
stems from), and from SITES.json, which maps file name patterns to {kind: number} and wins where both speak; the table
beside this script is for the exports and patterns that the project is tested on. Of each kind there are three counts:
operators after `optimize`; nodes of that model written at --opset with fused operators kept; and nodes after
`optimize(opset=...)`, written so too. A dash where that opset has no such operator. Exit code 1 if a place is missing
in memory, or in a file although the opset has the operator.
"""

from __future__ import annotations

import fnmatch
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from measure import table
from node_counts import models_in

# Kind -> operators that are its fused form, and the first opset that has one of them.
KINDS: dict[str, tuple[frozenset[str], int]] = {
    "attention": (frozenset({"Attention"}), 23),
    "layer_norm": (frozenset({"LayerNormalization"}), 17),
    "rms_norm": (frozenset({"RMSNormalization"}), 23),
    "rope": (frozenset({"RotaryEmbedding"}), 23),
    "gelu": (frozenset({"Gelu"}), 20),
    "silu": (frozenset({"Swish", "SwiGLU"}), 24),
    "softmax": (frozenset({"Softmax"}), 13),
}
# ATen operators that are one place each.
_ATEN = {
    "aten.gelu.default": "gelu",
    "aten.silu.default": "silu",
    "aten.layer_norm.default": "layer_norm",
    "aten.scaled_dot_product_attention.default": "attention",
    "aten.softmax.int": "attention",  # written out; a model with another softmax says so in the table
}
_RMS_MODULE = re.compile(r"RMS", re.IGNORECASE)


@dataclass
class Row:
    """Places by kind: expected, found in memory, in the file that is written afterwards, and in the file after
    optimizing for the opset (None: it has no such operator)."""

    model: str
    expected: dict[str, int]
    memory: dict[str, int] = field(default_factory=dict)
    written: dict[str, int | None] = field(default_factory=dict)
    for_opset: dict[str, int | None] = field(default_factory=dict)
    fault: str = ""

    def is_complete(self) -> bool:
        found = all(self.memory.get(kind, 0) >= count for kind, count in self.expected.items())
        counts = [(found.get(kind), count) for kind, count in self.expected.items() for found in self._files()]
        kept = all(have is None or have >= count for have, count in counts)
        return not self.fault and found and kept

    def _files(self) -> list[dict[str, int | None]]:
        return [self.written, self.for_opset]

    def cells(self) -> list[str]:
        shown = []
        for kind in KINDS:
            count = self.expected.get(kind, 0)
            files = " ".join(_count_text(found.get(kind)) for found in self._files())
            shown.append(f"{self.memory.get(kind, 0)} {files} / {count}" if count else "")
        return [self.model, *shown, self.fault or ("" if self.is_complete() else "missing")]


def _count_text(count: int | None) -> str:
    return "-" if count is None else str(count)


def sites_by_metadata(nodes: Iterable[Any]) -> dict[str, int]:
    """The places that the exporter's notes on nodes tell of."""
    places: dict[str, set[str]] = {}
    for node in nodes:
        notes = {entry.key: entry.value for entry in node.metadata_props}
        namespace = notes.get("namespace", "")
        aten = namespace.rpartition(": ")[2]
        if aten in _ATEN:
            places.setdefault(_ATEN[aten], set()).add(namespace)
        path = namespace.split("/")
        for depth, part in enumerate(path[:-1]):
            if _RMS_MODULE.search(part.rpartition(": ")[2]):
                places.setdefault("rms_norm", set()).add("/".join(path[: depth + 1]))
    return {kind: len(found) for kind, found in places.items()}


def expected_sites(model: Path, sites: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """What `model` should have; what the table says of its name wins over the exporter's notes."""
    import onnx

    expected = sites_by_metadata(onnx.load(model, load_external_data=False).graph.node)
    for pattern, counts in sites.items():
        if fnmatch.fnmatch(model.name, pattern):
            expected.update(counts)
    return {kind: count for kind, count in expected.items() if count}


def by_kind(operators: Counter[str]) -> dict[str, int]:
    return {kind: sum(operators[name] for name in names) for kind, (names, _) in KINDS.items()}


def measure(model: Path, sites: Mapping[str, Mapping[str, int]], opset: int) -> Row:
    """Optimize one model and count."""
    import tilewright
    from tilewright.importers.onnx import to_proto

    row = Row(model.name, expected_sites(model, sites))
    try:
        module = tilewright.load(model)
        tilewright.optimize(module)
        row.memory = by_kind(Counter(op.op_type for op in module.walk()))
        row.written = _in_file(to_proto(module, opset=opset, keep_fused=True), opset)
        other = tilewright.optimize(model, opset=opset).module
        row.for_opset = _in_file(to_proto(other, keep_fused=True), opset)
    except Exception as error:
        row.fault = str(error).splitlines()[0]
    return row


def _in_file(proto: Any, opset: int) -> dict[str, int | None]:
    """Fused operators of a file by kind; None for those that the opset has not."""
    from tilewright.importers.onnx.node_counts import count_operators

    found = by_kind(count_operators(proto))
    return {kind: found[kind] if opset >= first else None for kind, (_, first) in KINDS.items()}


def totals(rows: Sequence[Row]) -> list[str]:
    """One line: in memory, in both files, and expected over all models, each place counted at most once."""
    cells = []
    for kind in KINDS:
        wanted = sum(row.expected.get(kind, 0) for row in rows)
        memory = sum(min(row.memory.get(kind, 0), row.expected.get(kind, 0)) for row in rows)
        files = " ".join(_count_text(_total(kind, rows, name)) for name in ("written", "for_opset"))
        cells.append(f"{memory} {files} / {wanted}" if wanted else "")
    return ["all", *cells, ""]


def _total(kind: str, rows: Sequence[Row], name: str) -> int | None:
    counts = [(getattr(row, name).get(kind), row.expected.get(kind, 0)) for row in rows]
    known = [min(count, expected) for count, expected in counts if count is not None]
    return sum(known) if known else None


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--sites", type=click.Path(exists=True, path_type=Path), help="Places; default: fusion_sites.json.")
@click.option("--opset", type=int, default=23, show_default=True, help="Opset of the written model.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures here, too.")
def main(paths: tuple[Path, ...], sites: Path | None, opset: int, json_path: Path | None) -> None:
    """Count fused operators of MODELS beside the places where they belong."""
    known = json.loads((sites or Path(__file__).with_name("fusion_sites.json")).read_text())
    rows = [measure(model, known, opset) for model in models_in(paths)]
    rows = [row for row in rows if row.expected or row.fault]
    lines = [*(row.cells() for row in rows), totals(rows)]
    table(f"in memory, written at opset {opset}, optimized for it / places", ["model", *KINDS, ""], lines)
    if json_path is not None:
        json_path.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    sys.exit(0 if all(row.is_complete() for row in rows) else 1)


if __name__ == "__main__":
    main()
