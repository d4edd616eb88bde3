"""What `tilewright diff` compares: a model, or a step of a trace, `FOLDER:STEP`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tilewright.backends.model_source import open_model, parse_file
from tilewright.graph.diagnostics import DiagnosticLog, UsageError
from tilewright.graph.module import Module
from tilewright.passes.trace import FILE_NAME, TraceContent, read_trace


@dataclass(frozen=True)
class Step:
    """One side: a model file, or the model after pass `number` of a trace (0: before the first)."""

    label: str
    path: Path
    trace: TraceContent | None = None
    number: int = 0

    def module(self) -> Module:
        return parse_file(self.path) if self.trace is not None else open_model(self.path, DiagnosticLog()).module


def steps_of(before: str, after: str | None) -> tuple[Step, Step]:
    """The two sides that the arguments name. Raises UsageError, ModelError for a bad trace."""
    if after is not None:
        return _step(before), _step(after)
    folder, step = _split(before)
    if folder is None:
        raise UsageError("diff/one", f"{before!r} is one model", notes=["name a second, or a folder with a trace"])
    trace = read_trace(folder)
    if step is None:
        return _at(trace, 0), _at(trace, len(trace.passes))
    number = _number(trace, step)
    if number == 0:
        raise UsageError("diff/step", "nothing comes before the input of a trace", notes=[_steps_text(trace)])
    return _at(trace, number - 1), _at(trace, number)


def _split(text: str) -> tuple[Path | None, str | None]:
    """The folder of a trace and the step in it, `None` where there is none."""
    if (Path(text) / FILE_NAME).is_file() or Path(text).is_dir():
        return Path(text), None
    folder, colon, step = text.rpartition(":")
    return (Path(folder), step) if colon and Path(folder).is_dir() else (None, None)


def _step(text: str) -> Step:
    folder, step = _split(text)
    if folder is None:
        return Step(text, Path(text))
    trace = read_trace(folder)
    return _at(trace, len(trace.passes) if step is None else _number(trace, step))


def _number(trace: TraceContent, step: str) -> int:
    """The number of a step given as a number, `input`, `last`, or the name of a pass (its last run)."""
    known = {"input": 0, "last": len(trace.passes)}
    if step in known:
        return known[step]
    if step.isdecimal() and int(step) <= len(trace.passes):
        return int(step)
    runs = [each.number for each in trace.passes if each.name == step]
    if not runs:
        raise UsageError("diff/step", f"the trace {trace.directory} has no step {step!r}", notes=[_steps_text(trace)])
    return runs[-1]


def _steps_text(trace: TraceContent) -> str:
    names = ", ".join(f"{each.number} {each.name}" for each in trace.passes if each.snapshot is not None)
    idle = sum(each.snapshot is None for each in trace.passes)
    more = f"; {idle} more changed nothing" if idle else ""
    return f"its steps are: input, {names or 'no pass that changed something'}{more}"


def _at(trace: TraceContent, number: int) -> Step:
    """The model after pass `number`: the newest snapshot up to there."""
    path, name = trace.input, "input"
    for each in trace.passes[:number]:
        name = each.name or each.text
        path = each.snapshot or path
    return Step(f"{trace.directory}:{number} {name}", path, trace, number)


def reasons_between(first: Step, second: Step) -> dict[str, list[str]]:
    """Why rewrites between two steps of one trace were made, by the places they are about."""
    if first.trace is None or second.trace is None or first.trace.directory != second.trace.directory:
        return {}
    reasons: dict[str, list[str]] = {}
    low, high = sorted((first.number, second.number))
    for each in second.trace.passes[low:high]:
        for rewrite in each.rewrites:
            text = f"{each.name}, {rewrite['rule']}" if rewrite["rule"] != each.name else each.name
            reason = f"{text}: {rewrite['reason']}" if rewrite["reason"] else text
            for place in rewrite["at"]:
                reasons.setdefault(place, []).append(reason)
    return reasons
