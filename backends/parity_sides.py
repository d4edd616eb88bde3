"""Puts together what `check_parity` compares: two models on one runtime, or one model on two runtimes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..graph.diagnostics import UsageError
from ..graph.module import Module
from . import onnxruntime_oracle
from .feeds import FeedPlan
from .model_source import Model
from .parity import ParityReport, PlannedRuns, Runner, Side, check_parity, reason_of
from .target import compile_module

ENGINES = ("onnxruntime", "reference")


def planned_runs(
    module: Module,
    within: Module | None,
    feeds: Mapping[str, Any] | None,
    runs: int,
    dims: Mapping[str, int] | None,
    shapes: Mapping[str, Sequence[int]] | None,
) -> list[PlannedRuns]:
    """One run on given inputs if there are any, else `runs` runs on generated ones. Raises UsageError."""
    if runs < 1:
        raise UsageError("parity/runs", f"at least one run is needed, not {runs}")
    plan = FeedPlan(module, dims, shapes, feeds, within)
    return [PlannedRuns(plan, 1 if feeds else runs)]


def compare_models(
    expected: Model,
    actual: Model,
    engine: str,
    planned: Sequence[PlannedRuns],
    *,
    seed: int = 0,
    tolerance: float | None = None,
) -> ParityReport:
    """Whether `actual` gives what `expected` gives, both run by `engine`. Raises UsageError for an unknown engine.

    Where ONNX Runtime cannot run `expected`, or only with sizes of 1, which show little, the reference interpreter runs
    both.
    """
    _check_engine(engine)
    planned = [each._replace(hides=not each.plan.given) for each in planned]
    label = actual.label
    if label == expected.label:
        label = f"the new {label.removeprefix('the ')}"

    def check(start: Callable[[Model], Callable[[], Runner]]) -> ParityReport:
        sides = Side(expected.label, expected.module, start(expected)), Side(label, actual.module, start(actual))
        return check_parity(*sides, planned, seed=seed, tolerance=tolerance)

    if engine == "reference":
        return _noted(check(_in_reference), "run by the reference interpreter")
    if not onnxruntime_oracle.is_available():
        report = check(_in_reference)
        missing = "ONNX Runtime is not installed, so the reference interpreter ran the models"
        return _noted(report, f"{missing} ({onnxruntime_oracle.INSTALL_HINT})")
    report = check(_in_onnxruntime)
    if report.failure is None and report.refusal is None:
        return _noted(report, f"run by {onnxruntime_oracle.description()}")
    again = check(_in_reference)
    if report.refusal is None:
        return _noted(again, f"run by the reference interpreter, because in ONNX Runtime {report.reason}")
    if not report.passed or again.failure is not None:
        return _noted(report, f"run by {onnxruntime_oracle.description()}")
    runs = f"{expected.label} runs only where all sizes are 1 (it agrees there): {reason_of(report.refusal)}"
    return _noted(again, f"run by the reference interpreter, because in ONNX Runtime {runs}")


def compare_runtimes(
    model: Model,
    against: str,
    target: str,
    planned: Sequence[PlannedRuns],
    *,
    seed: int = 0,
    tolerance: float | None = None,
) -> ParityReport:
    """Whether `model` compiled for `target` gives what it gives on the runtime `against`.

    Raises UsageError if ONNX Runtime is wanted and not installed, or if both would be the same runtime.
    """
    _check_engine(against)
    if against == target:
        raise UsageError(
            "parity/same", f"the target {target!r} would be compared with itself", notes=["name a second model instead"]
        )
    if against == "onnxruntime" and not onnxruntime_oracle.is_available():
        raise UsageError(
            "parity/no-onnxruntime",
            "ONNX Runtime is not installed",
            notes=[onnxruntime_oracle.INSTALL_HINT, "or compare with a second model"],
        )
    runner = compile_module(model.module, target)
    start, label = {
        "onnxruntime": (_in_onnxruntime, onnxruntime_oracle.OnnxRuntime.name),
        "reference": (_in_reference, "the reference interpreter"),
    }[against]
    report = check_parity(
        Side(f"{model.label} in {label}", model.module, start(model)),
        Side(f"{model.label} compiled for {target}", model.module, lambda: runner),
        planned,
        seed=seed,
        tolerance=tolerance,
    )
    if against != "onnxruntime":
        return report
    if report.failure is not None:
        options = "--engine reference" if target != "reference" else "--target cpu --engine reference"
        how = f"{options} (parity(model, 'reference', target='cpu') in Python)"
        report.notes.append(f"{how} asks the reference interpreter instead")
    elif not report.passed:
        deviating = {op.definition.op_type: op.definition.deviation for op in model.module.walk()}
        report.notes += [f"{name}: {deviation}" for name, deviation in sorted(deviating.items()) if deviation]
    return _noted(report, f"held against {onnxruntime_oracle.description()}")


def _check_engine(engine: str) -> None:
    if engine not in ENGINES:
        raise UsageError("parity/engine", f"there is no runtime {engine!r}", notes=[f"there are {', '.join(ENGINES)}"])


def _in_reference(model: Model) -> Callable[[], Runner]:
    return lambda: compile_module(model.module, "reference")


def _in_onnxruntime(model: Model) -> Callable[[], Runner]:
    return lambda: onnxruntime_oracle.OnnxRuntime(model.module if model.source is None else model.source)


def _noted(report: ParityReport, note: str) -> ParityReport:
    report.notes.insert(0, note)
    return report
