"""What `make demo` shows: real networks go in, smaller ones come out, and ONNX Runtime agrees with both.

The results lie in `out/demo`. Where the package index cannot be reached, networks that the `onnx` package
carries for its own tests take their place, and the output says so.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import onnx
from rich.console import Console
from rich.table import Table

from model_zoo import Unavailable, fetch
from tilewright.tools.cli import main as tilewright

FIRST = "ppocr-cls"
OTHERS = ("ppocr-det", "ppocr-rec", "silero-vad", "silero-vad-op15")
FOLDER = Path("out") / "demo"


def networks() -> list[Path]:
    """The networks to show, the first one at length."""
    try:
        return [fetch(name) for name in (FIRST, *OTHERS)]
    except Unavailable as reason:
        print(f"{reason}\nShowing networks from the onnx package instead.\n")
        data = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
        return [data / f"light_{name}.onnx" for name in ("densenet121", "shufflenet", "squeezenet")]


def optimize_quietly(path: Path) -> dict[str, Any]:
    """Optimize one network and return the report; `{}` if that failed (the reason is on standard error)."""
    captured = io.StringIO()
    with contextlib.redirect_stdout(captured):
        tilewright(["optimize", str(path), "-o", str(FOLDER / path.name), "--require-parity", "--json"])
    return json.loads(captured.getvalue() or "{}")


def row_of(path: Path, report: dict[str, Any]) -> list[str]:
    """The cells of the summary table."""
    if not report or not report["parity"]["passed"]:
        return [path.name, "", "", "", (report or {"parity": {"reason": "failed"}})["parity"]["reason"]]
    nodes, size = report["nodes"], report["file_bytes"]
    outputs = [output for run in report["parity"]["runs"] for output in run["outputs"]]
    errors = [each["error"] / each["scale"] for each in outputs if each["scale"]]
    return [
        path.name,
        f"{nodes['before']:>4} -> {nodes['after']:>3}  {change(nodes)}",
        f"{size['before'] / 1e6:>5.2f} -> {size['after'] / 1e6:>5.2f} MB  {change(size)}",
        f"{max(errors, default=0.0):.1g}",
        report["parity"]["verdict"],
    ]


def change(pair: dict[str, int]) -> str:
    return f"{100 * (pair['after'] - pair['before']) / pair['before']:+4.0f} %"


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    first, *others = networks()
    print(f"$ tilewright optimize {first.name} -o {FOLDER / first.name} --require-parity\n", flush=True)
    code = tilewright(["optimize", str(first), "-o", str(FOLDER / first.name), "--require-parity"])
    print("\nThe same for all:\n", flush=True)
    table = Table(
        "network", "nodes", "file", "error / largest", "ONNX Runtime", box=None, pad_edge=False, padding=(0, 3, 0, 0)
    )
    reports = {path: optimize_quietly(path) for path in (first, *others)}
    for path, report in reports.items():
        table.add_row(*row_of(path, report))
    Console(width=None if sys.stdout.isatty() else 120, highlight=False).print(table)
    print(f"\nThe new networks are in {FOLDER}. Next: tilewright diff OLD NEW, tilewright ir NEW, tilewright --help")
    passed = all(report and report["parity"]["passed"] for report in reports.values())
    return code if passed else max(code, 1)


if __name__ == "__main__":
    sys.exit(main())
