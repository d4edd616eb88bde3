"""Whether two models, or one model on two runtimes, compute the same: run both on the same inputs and compare.

The sides are run one after the other, so that only one of them is in memory at a time. Sizes that the model leaves
open are found by trying (see `feeds`), and each run differs from those before it in as many of them as the model
permits: a rewrite that is right for one size only is found out. Where a model has masks, further runs have some that
hide all keys of a query.

Outputs agree as `passes.agreement` says. Where a difference is beyond the tolerance, the report tells what bears on it:
how far the original's own results move when its inputs change in the last bit (`sensitivity`), and whether they went
through a narrower type (`working_precision`). Neither changes the verdict; only a tolerance that the user gives does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..graph.diagnostics import TilewrightError
from ..graph.module import Module
from ..graph.opdef import Trait
from ..passes.agreement import Agreement, agreement, describe, tolerance_for
from .feeds import FeedPlan, Scenario
from .sensitivity import sensitivity
from .working_precision import narrow_outputs

# How many combinations of sizes are tried until one runs: for the first run, and for each further one.
FIRST_TRIES = 80
FURTHER_TRIES = 16


class Runner(Protocol):
    """Something that runs a model."""

    def run(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """All outputs by name. Raises TilewrightError."""


class Side(NamedTuple):
    """One of the two that are compared: what to call it, the model, and how to make it ready to run."""

    label: str
    module: Module
    start: Callable[[], Runner]


@dataclass
class ParityRun:
    """One run of both sides: what was chosen for the inputs, the inputs, and how each output compares."""

    inputs: str
    feeds: dict[str, Any] = field(default_factory=dict, repr=False)
    outputs: dict[str, Agreement] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        rows = []
        for name, found in self.outputs.items():
            row = {"name": name, "type": found.type, "passed": found.passed, "reason": found.reason}
            row |= {"error": found.error, "scale": found.scale, "tolerance": found.tolerance, "random": found.random}
            rows.append(row)
        return {"inputs": self.inputs, "outputs": rows}


@dataclass
class ParityReport:
    """What a comparison found. `verdict` is "agrees", "differs" or "not checked"; `reason` explains the last two.

    `notes` are things worth knowing, such as which runtime was used in the place of one that is missing.
    """

    expected: str
    actual: str
    verdict: str = "not checked"
    reason: str = ""
    runs: list[ParityRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failure: TilewrightError | None = None  # why the expected side could not be run
    refusal: TilewrightError | None = None  # why it could not be run with sizes other than 1

    @property
    def passed(self) -> bool:
        """Whether results were compared and all agree."""
        return self.verdict == "agrees"

    @property
    def worst(self) -> dict[str, Agreement]:
        """For each output, its run that failed, else the one with the largest relative error."""
        found: dict[str, Agreement] = {}
        for run in self.runs:
            for name, each in run.outputs.items():
                known = found.get(name)
                if known is None or _badness(each) > _badness(known):
                    found[name] = each
        return found

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "passed": self.passed,
            "verdict": self.verdict,
            "reason": self.reason,
            "expected": self.expected,
            "actual": self.actual,
            "notes": self.notes,
            "runs": [run.to_dict() for run in self.runs],
        }

    def __str__(self) -> str:
        lines = [f"{self.actual} {self.verdict}{' from' if self.verdict == 'differs' else ' with'} {self.expected}"]
        if self.verdict == "not checked":
            lines = [f"{self.actual} was not checked against {self.expected}"]
        lines += [f"  {self.reason}"] if self.reason else []
        for name, each in self.worst.items():
            figure = "equal" if each.error is None else f"{each.relative_error:.2g} of at most {each.tolerance:.2g}"
            figure = "random" if each.random else figure
            lines.append(f"  {name}: {each.type}, {each.reason or figure}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def _badness(found: Agreement) -> tuple[bool, float]:
    relative = found.relative_error
    return not found.passed, relative / found.tolerance if relative is not None and found.tolerance else 0.0


class PlannedRuns(NamedTuple):
    """Make `runs` runs with inputs from `plan`, with `hides` further ones in which rows of masks hide everything."""

    plan: FeedPlan
    runs: int
    hides: bool = False


def check_parity(
    expected: Side, actual: Side, planned: Sequence[PlannedRuns], *, seed: int = 0, tolerance: float | None = None
) -> ParityReport:
    """Run both sides on the same inputs and compare every output.

    `tolerance` replaces the standard one of floating-point outputs. A side that cannot run is part of the report, not
    an error: "not checked" if it is the expected one, "differs" if only the actual one fails.
    """
    report = ParityReport(expected.label, actual.label)
    report.reason = interface_difference(expected.module, actual.module)
    if report.reason:
        report.verdict = "differs"
        return report
    try:
        runner = expected.start()
        known = [result for each in planned for result in _explore(runner, each, seed)]
    except TilewrightError as error:
        report.failure, report.reason = error, f"{expected.label} cannot be run: {reason_of(error)}"
        return report
    unstable = _unstable_outputs(expected.module, runner, known)
    del runner
    if all(result.is_unit for result in known):
        report.refusal = next((result.refusal for result in known if result.refusal is not None), None)
    try:
        runner = actual.start()
        for result in known:
            report.runs.append(_compared(result, runner.run(result.feeds), tolerance, unstable))
    except TilewrightError as error:
        report.verdict, report.reason = "differs", f"{actual.label} cannot be run: {reason_of(error)}"
        return report
    del runner
    _conclude(report, unstable, expected.module)
    _explain_differences(report, expected, known)
    return report


class _Result(NamedTuple):
    """What the expected side gave for some inputs."""

    inputs: str
    feeds: dict[str, Any]
    outputs: Mapping[str, Any]
    is_unit: bool  # every size that the model leaves open was 1
    refusal: TilewrightError | None = None  # of the first sizes that were tried, if these were not


def _explore(runner: Runner, planned: PlannedRuns, seed: int) -> list[_Result]:
    """Results for `planned.runs` sets of inputs that the model accepts, as different in their sizes as it permits."""
    plan = planned.plan
    results: list[_Result] = []
    taken: list[Scenario] = []
    for number in range(planned.runs if plan.inputs else 1):
        found = _first_that_runs(runner, plan, taken, seed + number)
        scenario, result = found if found is not None else (taken[0], _attempt(runner, plan, taken[0], seed + number))
        if scenario not in taken:
            taken.append(scenario)
        results.append(result)
    return results + (_with_hidden_rows(runner, plan, taken, seed) if planned.hides else [])


def _with_hidden_rows(runner: Runner, plan: FeedPlan, taken: Sequence[Scenario], seed: int) -> list[_Result]:
    """Results for masks that leave some queries no key, which rewrites of attention may change.

    The sizes are the largest of those that the model took; one that refuses such masks is not asked again.
    """
    results = []
    for hidden in plan.ways_to_hide():
        largest = max(taken, key=lambda scenario: sum(map(np.size, plan.feeds(scenario, seed).values())))
        try:
            results.append(_attempt(runner, plan, largest, seed, hidden))
        except TilewrightError:
            break
    return results


def _first_that_runs(
    runner: Runner, plan: FeedPlan, taken: Sequence[Scenario], seed: int
) -> tuple[Scenario, _Result] | None:
    """The first scenario unlike `taken`, or else near it, that the model accepts. Raises the error of the first if none
    ever did."""
    first_error: TilewrightError | None = None
    scenarios = islice(plan.scenarios(taken), FURTHER_TRIES if taken else FIRST_TRIES)
    near = (scenario for scenario in plan.neighbours(taken[0]) if scenario not in taken) if taken else ()
    for scenario in chain(scenarios, near):
        try:
            return scenario, _attempt(runner, plan, scenario, seed)._replace(refusal=first_error)
        except TilewrightError as error:
            first_error = first_error or error
    if taken:
        return None
    assert first_error is not None, "a plan has at least one scenario"
    if first_error.code in ("run/no-meaning", "onnxruntime/load"):
        raise first_error  # no inputs will help
    hint = "give inputs that the model accepts: --input, --dim or --input-shape (feeds, dims, shapes in Python)"
    raise first_error.with_note(hint)


def _attempt(runner: Runner, plan: FeedPlan, scenario: Scenario, seed: int, hidden: float | None = None) -> _Result:
    feeds = plan.feeds(scenario, seed, hidden)
    sizes = [value for value in plan.chosen(scenario).values() if type(value) is int]
    is_unit = bool(sizes) and set(sizes) == {1}
    inputs = plan.describe(scenario)
    if hidden is not None:
        inputs = f"{inputs} (masks with a row that hides all)".strip()
    return _Result(inputs, feeds, runner.run(feeds), is_unit)


def _unstable_outputs(module: Module, runner: Runner, known: Sequence[_Result]) -> frozenset[str]:
    """Outputs that random operators change from run to run on the same inputs."""
    if not any(Trait.RANDOM in op.definition.traits for op in module.walk()):
        return frozenset()
    unstable = set()
    for result in known:
        again = runner.run(result.feeds)
        unstable |= {name for name, value in result.outputs.items() if not agreement(value, again[name]).passed}
    return frozenset(unstable)


def _compared(
    result: _Result, actual: Mapping[str, Any], tolerance: float | None, unstable: frozenset[str]
) -> ParityRun:
    run = ParityRun(result.inputs, result.feeds)
    for name, value in result.outputs.items():
        if name in unstable:
            mine, other = describe(value), describe(actual[name])
            reason = "" if mine == other else f"is {other}, expected {mine}"
            run.outputs[name] = Agreement(mine, None, None, 0.0, 0, reason, random=True)
        else:
            run.outputs[name] = agreement(value, actual[name], tolerance)
    return run


def _explain_differences(report: ParityReport, expected: Side, known: Sequence[_Result]) -> None:
    """Note what is known about outputs whose numbers are too far apart."""
    narrow = narrow_outputs(expected.module)
    runner: Runner | None = None
    explained: set[str] = set()
    for run, result in zip(report.runs, known, strict=True):
        wrong = {name: found for name, found in run.outputs.items() if not found.passed and name not in explained}
        names = [name for name, found in wrong.items() if found.error is not None]
        if not names:
            continue
        explained |= set(names)
        runner = expected.start() if runner is None else runner
        moved = sensitivity(runner.run, result.feeds, result.outputs, names)
        for name in names:
            scale = wrong[name].scale
            if moved[name] and scale:
                report.notes.append(
                    f"{name} of {expected.label} itself moves by {moved[name] / scale:.2g} of its largest element when "
                    f"the inputs change in the last bit"
                )
            if name in narrow:
                report.notes.append(
                    f"{name} is computed in {narrow[name]}, which rounds more than the type of the output tells; "
                    f"--rtol {tolerance_for(narrow[name]):.1g} (rtol in Python) is what {narrow[name]} can keep"
                )


def _conclude(report: ParityReport, unstable: frozenset[str], module: Module) -> None:
    wrong = [name for name, found in report.worst.items() if not found.passed]
    report.verdict = "differs" if wrong else "agrees"
    if wrong:
        count = len(report.worst)
        report.reason = f"{wrong[0]}: {report.worst[wrong[0]].reason}"
        if count > 1:
            report.reason += f" ({len(wrong)} of {count} outputs differ)"
    if unstable and not wrong and unstable >= set(report.worst):
        random = sorted({op.definition.op_type for op in module.walk() if Trait.RANDOM in op.definition.traits})
        report.verdict = "not checked"
        report.reason = f"every output is random ({', '.join(random)}), so only their types could be compared"
    elif unstable:
        report.notes.append(f"random from run to run, so only their types were compared: {', '.join(sorted(unstable))}")
    for name, found in report.worst.items():
        counts = [run.outputs[name].compared for run in report.runs]
        if found.error is not None and not any(counts) and "[0" not in found.type:
            report.notes.append(f"{name} has no finite element in any run, so its values say nothing")


def interface_difference(expected: Module, actual: Module) -> str:
    """What is different in the names of inputs and outputs; empty if nothing is."""
    for what, mine, other in [
        ("inputs", _input_names(expected), _input_names(actual)),
        ("outputs", list(expected.main.output_names), list(actual.main.output_names)),
    ]:
        missing = [name for name in mine if name not in other]
        extra = [name for name in other if name not in mine]
        if missing or extra:
            parts = [f"missing are {', '.join(missing)}"] if missing else []
            parts += [f"new are {', '.join(extra)}"] if extra else []
            return f"the {what} are not the same: {'; '.join(parts)}"
    return ""


def _input_names(module: Module) -> list[str]:
    """The inputs that must be given."""
    main = module.main
    return [argument.name or "" for argument in main.inputs if argument not in main.defaults]


def reason_of(error: TilewrightError) -> str:
    """An error as one sentence for a report: its message and what its notes add."""
    first = error.diagnostics[0]
    place = f" at {first.location}" if first.location is not None else ""
    return "; ".join([f"{first.message}{place}", *first.notes])
