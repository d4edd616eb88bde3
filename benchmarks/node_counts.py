"""How many nodes, and bytes, optimizing leaves of models, beside what released tools leave.

    python benchmarks/node_counts.py MODEL_OR_FOLDER ... [--target onnxruntime] [--peers PYTHON] [--json FILE]

PYTHON is the interpreter of another environment that has onnxsim, onnxslim and onnxscript; each of them runs in a
process of its own, with a time limit, and shows a dash where it fails. With --target onnxruntime the tools are those
that use that runtime's operators: onnxscript's `optimize_for_ort`, and ONNX Runtime's optimizer of transformers, which
needs onnxruntime there and finds more with torch. A further column has what `optimize(opset=23)` leaves.

Nodes of subgraphs and function bodies count, constants do not. Parity is that of the written file against the original
in ONNX Runtime, its optimizations disabled: the largest error relative to the largest element of an output. Exit code 1
if a model grew, has more nodes than a tool leaves, does not agree, or cannot be optimized.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click
from measure import file_size, table
from peer_nodes import RUNTIME_TOOLS, TOOLS

if TYPE_CHECKING:
    from tilewright.backends.parity import ParityReport


@dataclass
class Row:
    """What came out for one model."""

    model: str
    original: int
    peers: dict[str, int | None] = field(default_factory=dict)
    ours: int | None = None
    at_opset_23: int | None = None
    bytes_before: int = 0
    bytes_after: int = 0
    parity: str = ""
    faults: list[str] = field(default_factory=list)

    @property
    def best_peer(self) -> int | None:
        return min((count for count in self.peers.values() if count is not None), default=None)

    def cells(self, tools: Sequence[str], target: str) -> list[str]:
        counts = [self.peers.get(tool) for tool in tools]
        own = [self.ours] if target == "onnx" else [self.at_opset_23, self.ours]
        shown = ["-" if count is None else str(count) for count in (*counts, *own)]
        ratio = f"{self.bytes_after / self.bytes_before:.4f}" if self.bytes_after else "-"
        return [self.model, str(self.original), *shown, ratio, self.parity, "; ".join(self.faults)]


def models_in(paths: Sequence[Path]) -> Iterator[Path]:
    """The given files, and the ONNX files below the given folders."""
    for path in paths:
        yield from sorted(path.rglob("*.onnx")) if path.is_dir() else [path]


def peer_nodes(python: str, tool: str, model: Path, limit: float, folder: Path) -> int | None:
    """Nodes that `tool` leaves; None if it fails or takes longer than `limit` seconds."""
    script, out = Path(__file__).with_name("peer_nodes.py"), folder / "peer.onnx"
    command = [python, str(script), tool, str(model), str(out)]
    try:
        subprocess.run(command, capture_output=True, timeout=limit, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    return file_nodes(out)


def file_nodes(path: Path) -> int:
    import onnx

    from tilewright.importers.onnx.node_counts import count_operators

    return count_operators(onnx.load(path, load_external_data=False)).total()


def measure(model: Path, level: int, target: str, with_parity: bool, folder: Path) -> Row:
    """Optimize one model and look at the file that comes out."""
    import tilewright

    row = Row(model.name, file_nodes(model), bytes_before=file_size(model))
    out = folder / model.name
    try:
        report = tilewright.optimize(model, level=level, target=target)
        tilewright.save(report.module, out, target=target)
        row.ours, row.bytes_after = file_nodes(out), file_size(out)
        if with_parity:
            _judge(row, tilewright.parity(model, out))
        if target == "onnxruntime":
            row.at_opset_23 = tilewright.optimize(model, level=level, opset=23).after.nodes
    except tilewright.TilewrightError as error:
        row.faults.append(str(error).splitlines()[0])
    for path in folder.iterdir():
        path.unlink()
    if target == "onnx" and row.bytes_after > row.bytes_before:
        row.faults.append(f"grew by {row.bytes_after - row.bytes_before} bytes")
    return row


def _judge(row: Row, report: ParityReport) -> None:
    found = list(report.worst.values())
    relative = max((each.relative_error or 0.0 for each in found), default=0.0)
    if not report.passed:
        row.parity = report.verdict
        row.faults.append(report.reason)
    else:
        row.parity = "equal" if relative == 0.0 else f"{relative:.1g}"


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--peers", help="Python of an environment with the other tools.")
@click.option("--time-limit", default=300.0, show_default=True, help="Seconds for one tool on one model.")
@click.option("--level", default=2, show_default=True)
@click.option("--target", type=click.Choice(["onnx", "onnxruntime"]), default="onnx", show_default=True)
@click.option("--parity/--no-parity", "with_parity", default=True, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the rows to this file, too.")
def main(
    paths: tuple[Path, ...],
    peers: str | None,
    time_limit: float,
    level: int,
    target: str,
    with_parity: bool,
    json_path: Path | None,
) -> None:
    """Count the nodes of models before and after optimizing."""
    tools = (TOOLS if target == "onnx" else RUNTIME_TOOLS) if peers else ()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for model in models_in(paths):
            row = measure(model, level, target, with_parity, Path(name))
            row.peers = {tool: peer_nodes(peers, tool, model, time_limit, Path(name)) for tool in tools if peers}
            if row.ours is not None and row.best_peer is not None and row.ours > row.best_peer:
                row.faults.append(f"{row.ours - row.best_peer} more than the best")
            rows.append(row)
            print(f"{model}: {'; '.join(row.faults) or 'done'}", file=sys.stderr, flush=True)
            if json_path is not None:
                json_path.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    own = ["tilewright"] if target == "onnx" else ["opset 23", "tilewright"]
    columns = ["model", "original", *tools, *own, "size ratio", "parity", "faults"]
    table(f"nodes and size at level {level}, target {target}", columns, [row.cells(tools, target) for row in rows])
    sys.exit(any(row.faults for row in rows))


if __name__ == "__main__":
    main()
