"""The trace of a pipeline: JSON lines in `DIR/trace.jsonl`, and the IR after each changed pass as numbered files.

docs/passes.md, "Trace", documents the schema (version 1), which viewers, ledgers and `tilewright diff` read. Within a
version, fields are only ever added.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..graph.diagnostics import ModelError
from .cost import ModelCost, model_cost
from .report import count_operations

if TYPE_CHECKING:
    from ..graph.diagnostics import Diagnostic
    from ..graph.location import Location
    from ..graph.module import Module
    from .context import Application, OperationFacts

SCHEMA = 1
FILE_NAME = "trace.jsonl"


class Trace:
    """Writes a trace into a directory (made if it does not exist; an older trace there is replaced)."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)

    def begin(self, module: Module, pipeline: str) -> None:
        """The first line and the IR before the first pass; what was there before is gone."""
        from .. import __version__

        for old in self.directory.glob("[0-9][0-9][0-9]-*.tw"):
            old.unlink()
        self._file = (self.directory / FILE_NAME).open("w", encoding="utf-8")
        self._pass_number = 0
        self._inferred = False
        snapshot = self._snapshot(module, "input")
        self._write(
            {
                "kind": "begin",
                "schema": SCHEMA,
                "tilewright": __version__,
                "pipeline": pipeline,
                "snapshot": snapshot,
                "ops": count_operations(module),
                "cost": self._cost(module),
            }
        )

    def begin_pass(self, text: str) -> None:
        self._pass_number += 1
        self._write({"kind": "begin-pass", "pass": self._pass_number, "text": text})

    def application(self, application: Application) -> None:
        """One rewrite."""
        self._write(
            {
                "kind": "rewrite",
                "pass": self._pass_number,
                "pass_name": application.pass_name,
                "number": application.number,
                "rule": application.rule,
                "reason": application.reason,
                "seconds": round(application.seconds, 9),
                "at": leaves(application.location),
                "removed": list(map(_facts, application.removed)),
                "added": list(map(_facts, application.added)),
                "modified": list(map(_facts, application.modified)),
            }
        )

    def diagnostic(self, diagnostic: Diagnostic) -> None:
        """A remark, warning or error of the current pass."""
        self._write(
            {
                "kind": diagnostic.severity,
                "pass": self._pass_number,
                "code": diagnostic.code,
                "message": diagnostic.message,
                "at": leaves(diagnostic.location) if diagnostic.location is not None else [],
                "notes": list(diagnostic.notes),
            }
        )

    def end_pass(
        self, module: Module, name: str, changed: bool, seconds: float, ops_before: int, ops_after: int
    ) -> None:
        self._inferred = self._inferred or name == "infer-shapes"
        self._write(
            {
                "kind": "end-pass",
                "pass": self._pass_number,
                "pass_name": name,
                "changed": changed,
                "seconds": round(seconds, 9),
                "ops_before": ops_before,
                "ops_after": ops_after,
                "snapshot": self._snapshot(module, name) if changed else None,
                "cost": self._cost(module) if changed else None,
            }
        )

    def end(self, seconds: float, error: str | None = None) -> None:
        """The last line; `error` is the message of what stopped the pipeline."""
        self._write({"kind": "end", "seconds": round(seconds, 9), "error": error})
        self._file.close()

    def _cost(self, module: Module) -> dict[str, Any] | None:
        """What a run of `module` costs; None below the level of tensors."""
        return model_cost(module, inferred=self._inferred).to_dict() if module.level == "onnx" else None

    def _snapshot(self, module: Module, name: str) -> str:
        file_name = f"{self._pass_number:03d}-{name}.tw"
        (self.directory / file_name).write_text(str(module), encoding="utf-8")
        return file_name

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()


def leaves(location: Location) -> list[str]:
    """The source places below a location, as text."""
    return [str(leaf) for leaf in location.leaves()]


def _facts(facts: OperationFacts) -> dict[str, Any]:
    return {"op": facts.name, "results": list(facts.results), "from": leaves(facts.location)}


@dataclass
class TracedPass:
    """What a trace says of one pass."""

    number: int
    text: str
    name: str = ""
    changed: bool = False
    seconds: float = 0.0
    ops_before: int = 0
    ops_after: int = 0
    snapshot: Path | None = None
    cost: ModelCost | None = None  # after the pass, if it changed something
    rewrites: list[dict[str, Any]] = field(default_factory=list)
    diagnostics: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class TraceContent:
    """A trace that was read back: `input` is the IR before the first pass, of `ops` operations and this `cost`."""

    directory: Path
    pipeline: str
    input: Path
    ops: int = 0
    cost: ModelCost | None = None
    passes: list[TracedPass] = field(default_factory=list)
    seconds: float | None = None  # None: the pipeline did not come to its end
    error: str | None = None

    @property
    def snapshots(self) -> list[Path]:
        """The IR files in order: the input, then one for each pass that changed something."""
        return [self.input, *(each.snapshot for each in self.passes if each.snapshot is not None)]


def read_trace(directory: str | Path) -> TraceContent:
    """Read the trace in `directory`, also one whose pipeline was stopped. Raises ModelError if there is none."""
    folder = Path(directory)
    path = folder / FILE_NAME
    if not path.is_file():
        raise ModelError("trace/missing", f"{folder} holds no trace: there is no {FILE_NAME}")
    records = _records(path)
    first = next(records, None)
    if first is None or first.get("kind") != "begin" or first.get("schema") != SCHEMA:
        raise ModelError("trace/schema", f"{path} does not begin with a record of schema {SCHEMA}")
    content = TraceContent(
        folder, first["pipeline"], folder / first["snapshot"], first.get("ops", 0), _read_cost(first)
    )
    for record in records:
        kind = record["kind"]
        if kind == "begin-pass":
            content.passes.append(TracedPass(record["pass"], record["text"]))
        elif kind == "end":
            content.seconds, content.error = record["seconds"], record["error"]
        elif kind == "end-pass":
            _finish(content.passes[-1], record, folder)
        elif kind == "rewrite":
            content.passes[-1].rewrites.append(record)
        elif content.passes:
            content.passes[-1].diagnostics.append(record)
    return content


def _finish(traced: TracedPass, record: dict[str, Any], folder: Path) -> None:
    traced.name, traced.changed, traced.seconds = record["pass_name"], record["changed"], record["seconds"]
    traced.ops_before, traced.ops_after = record["ops_before"], record["ops_after"]
    traced.snapshot = folder / record["snapshot"] if record["snapshot"] else None
    traced.cost = _read_cost(record)


def _read_cost(record: dict[str, Any]) -> ModelCost | None:
    facts = record.get("cost")
    return None if facts is None else ModelCost.from_dict(facts)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                # A process that was killed leaves a last line half written; what came before is still good.
                if lines.readline():
                    raise ModelError("trace/syntax", f"{path}, line {number}: this is not JSON") from None
