"""How many nodes, and bytes, optimizing leaves of models, beside what released tools leave.

    python benchmarks/node_counts.py MODEL_OR_FOLDER ... [--target onnxruntime | --functions] [--peers PYTHON]
        [--json FILE]

PYTHON is the interpreter of another environment that has onnxsim, onnxslim and onnxscript; each of them runs in a
process of its own, with a time limit, and shows a dash where it fails. With --target onnxruntime the tools are those
that use that runtime's operators: onnxscript's `optimize_for_ort`, and ONNX Runtime's optimizer of transformers, which
needs onnxruntime there and finds more with torch. A further column has what `optimize(opset=23)` leaves. With
--functions ours is the graph of `optimize(opset=23, functions=True)`, in which a call is a node; the nodes of function
bodies are in a column beside it. With --json, `more_at_opset_23` says by operator what `optimize(opset=23)` leaves more
or fewer of than the best of the tools does.

Nodes of subgraphs and function bodies count otherwise, constants do not. Parity is that of the written file against the
original in ONNX Runtime, its optimizations disabled: the largest error relative to the largest element of an output.
Exit code 1 if a model grew, has more nodes than a tool leaves, does not agree, or cannot be optimized.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
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
    in_functions: int | None = None
    more_at_opset_23: dict[str, int] = field(default_factory=dict)
    bytes_before: int = 0
    bytes_after: int = 0
    parity: str = ""
    faults: list[str] = field(default_factory=list)

    def cells(self, tools: Sequence[str], form: str) -> list[str]:
        counts = [self.peers.get(tool) for tool in tools]
        own = {"onnx": [], "onnxruntime": [self.at_opset_23], "functions": [self.at_opset_23, self.in_functions]}[form]
        own.append(self.ours)
        shown = ["-" if count is None else str(count) for count in (*counts, *own)]
        ratio = f"{self.bytes_after / self.bytes_before:.4f}" if self.bytes_after else "-"
        return [self.model, str(self.original), *shown, ratio, self.parity, "; ".join(self.faults)]


def models_in(paths: Sequence[Path]) -> Iterator[Path]:
    """The given files, and the ONNX files below the given folders."""
    for path in paths:
        yield from sorted(path.rglob("*.onnx")) if path.is_dir() else [path]


def peer_nodes(python: str, tool: str, model: Path, limit: float, folder: Path) -> Counter[str] | None:
    """Nodes that `tool` leaves, by operator; None if it fails or takes longer than `limit` seconds."""
    script, out = Path(__file__).with_name("peer_nodes.py"), folder / "peer.onnx"
    command = [python, str(script), tool, str(model), str(out)]
    try:
        subprocess.run(command, capture_output=True, timeout=limit, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    return file_nodes(out)


def file_nodes(path: Path, with_functions: bool = True) -> Counter[str]:
    import onnx

    from tilewright.importers.onnx.node_counts import count_operators

    proto = onnx.load(path, load_external_data=False)
    if not with_functions:
        del proto.functions[:]
    return count_operators(proto)


def measure(model: Path, level: int, form: str, with_parity: bool, folder: Path) -> Row:
    """Optimize one model and look at the file that comes out. `form`: the target, or "functions"."""
    import tilewright

    row = Row(model.name, file_nodes(model).total(), bytes_before=file_size(model))
    out = folder / model.name
    functions = form == "functions"
    target = "onnx" if functions else form
    try:
        report = tilewright.optimize(model, level, opset=23 if functions else None, target=target, functions=functions)
        tilewright.save(report.module, out, target=target, functions=functions)
        row.ours, row.bytes_after = file_nodes(out, with_functions=False).total(), file_size(out)
        row.in_functions = file_nodes(out).total() - row.ours
        if not functions:
            row.ours += row.in_functions
        if with_parity:
            _judge(row, tilewright.parity(model, out))
        if form != "onnx":
            row.more_at_opset_23 = dict(tilewright.optimize(model, level=level, opset=23).after.operators)
            row.at_opset_23 = sum(row.more_at_opset_23.values())
    except tilewright.TilewrightError as error:
        row.faults.append(str(error).splitlines()[0])
    for path in folder.iterdir():
        path.unlink()
    if form == "onnx" and row.bytes_after > row.bytes_before:
        row.faults.append(f"grew by {row.bytes_after - row.bytes_before} bytes")
    return row


def compare(row: Row, peers: dict[str, Counter[str] | None]) -> None:
    """Note what the tools leave, and that one leaves less than ours."""
    row.peers = {tool: None if found is None else found.total() for tool, found in peers.items()}
    best = min((found for found in peers.values() if found is not None), key=lambda found: found.total(), default=None)
    if best is None:
        return
    if row.ours is not None and row.ours > best.total():
        row.faults.append(f"{row.ours - best.total()} more than the best")
    differences = {name: row.more_at_opset_23.get(name, 0) - best[name] for name in {*row.more_at_opset_23, *best}}
    row.more_at_opset_23 = {name: count for name, count in sorted(differences.items()) if count}


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
@click.option("--functions", is_flag=True, help="Standard operators, and functions made of them.")
@click.option("--parity/--no-parity", "with_parity", default=True, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the rows to this file, too.")
def main(
    paths: tuple[Path, ...],
    peers: str | None,
    time_limit: float,
    level: int,
    target: str,
    functions: bool,
    with_parity: bool,
    json_path: Path | None,
) -> None:
    """Count the nodes of models before and after optimizing."""
    form = "functions" if functions else target
    tools = (TOOLS if form == "onnx" else RUNTIME_TOOLS) if peers else ()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for model in models_in(paths):
            row = measure(model, level, form, with_parity, Path(name))
            compare(row, {tool: peer_nodes(peers, tool, model, time_limit, Path(name)) for tool in tools if peers})
            rows.append(row)
            print(f"{model}: {'; '.join(row.faults) or 'done'}", file=sys.stderr, flush=True)
            if json_path is not None:
                json_path.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    own = {"onnx": [], "onnxruntime": ["opset 23"], "functions": ["opset 23", "in functions"]}[form]
    columns = ["model", "original", *tools, *own, "tilewright", "size ratio", "parity", "faults"]
    table(f"nodes and size at level {level}, {form}", columns, [row.cells(tools, form) for row in rows])
    sys.exit(any(row.faults for row in rows))


if __name__ == "__main__":
    main()
