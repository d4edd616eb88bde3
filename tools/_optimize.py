"""What `tilewright optimize` does, step by step: read, rewrite, write to a scratch folder, check, put into place."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tilewright
from tilewright.api import interface_passes
from tilewright.backends.model_source import Model, open_model, stored_bytes
from tilewright.graph.clone import clone_module
from tilewright.graph.data import replace_file
from tilewright.graph.diagnostics import DiagnosticLog, UsageError
from tilewright.graph.paths import check_folder, check_target
from tilewright.passes.bind_dims import parse_dims, parse_shapes
from tilewright.passes.optimize import ModelSummary
from tilewright.tools._ledger import read_ledger, show_ledger, trace_folder
from tilewright.tools._progress import Progress
from tilewright.tools._remarks import remarks_of, show_remarks
from tilewright.tools._show import (
    Stopwatch,
    change_text,
    console,
    print_json,
    show_diagnostics,
    show_parity,
    size_text,
    table,
)

if TYPE_CHECKING:
    from tilewright.backends.parity import ParityReport
    from tilewright.passes.bisect import BisectResult
    from tilewright.passes.ledger import Ledger
    from tilewright.passes.optimize import OptimizeReport


@dataclass
class Request:
    """The command line, checked."""

    model: str
    output: Path
    level: int
    passes: str | None
    opset: int | None
    target: str
    keep_fused: bool
    functions: bool
    remarks: bool
    dims: dict[str, int]
    shapes: dict[str, tuple[int, ...]]
    inputs: list[str]
    outputs: list[str]
    with_shapes: bool
    parity: bool
    require_parity: bool
    given: tuple[str, ...]
    runs: int
    seed: int
    rtol: float | None
    bisect: bool
    print_ir: bool
    trace: str | None
    ledger: bool
    verify_each: bool
    as_json: bool


@dataclass
class Outcome:
    """All there is to report."""

    report: OptimizeReport
    opsets: tuple[int | None, int | None]
    bytes: tuple[int, int]
    in_functions: int = 0  # of the nodes that were written
    parity: ParityReport | None = None
    culprit: BisectResult | None = None
    written: Path | None = None
    ledger: Ledger | None = None
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    @property
    def failed(self) -> bool:
        return self.parity is not None and self.parity.verdict == "differs"


def run(**options: Any) -> None:
    """The command. Raises SystemExit(1) if parity fails, a TilewrightError or OSError for bad input."""
    request = check_request(**options)
    outcome = carry_out(request)
    if request.as_json:
        print_json(as_dict(request, outcome))
    else:
        show(request, outcome)
    if outcome.written is None:
        raise SystemExit(1)


def check_request(**options: Any) -> Request:
    """The options as a request. Raises UsageError for options that contradict each other."""
    level, passes = options["level"], options["passes"]
    if level is not None and passes is not None:
        raise UsageError(
            "optimize/options", "-O and --passes exclude each other", notes=[f"--passes may name O{level}"]
        )
    if options["no_parity"]:
        for name, value in [("--require-parity", options["require_parity"]), ("--input", options["given"]),
                            ("--bisect", options["bisect"]), ("--rtol", options["rtol"] is not None)]:  # fmt: skip
            if value:
                raise UsageError("optimize/options", f"{name} has no use with --no-parity")
    model = Path(options["model"])
    if model.is_dir():
        raise UsageError("optimize/model", f"{model} is a folder, not a model")
    if model.suffix == ".tw" and options["output"] is None:
        raise UsageError(
            "optimize/output",
            "IR text has no weights of its own to write beside it",
            notes=["name an output: -o OUT.onnx"],
        )
    output = Path(options["output"]) if options["output"] is not None else model.with_name(f"{model.stem}.opt.onnx")
    if output.suffix == ".tw":
        raise UsageError(
            "optimize/output",
            f"{output} is a name for IR text, but an ONNX file is written",
            notes=["`tilewright ir MODEL --passes O2 -o OUT.tw` writes the text of a rewritten model"],
        )
    check_target(options["output"] or output)
    check_folder(options["trace_folder"], "--trace")
    dims, shapes = parse_dims(options["dims"]), parse_shapes(options["shapes"])
    return Request(
        model=options["model"],
        output=output,
        level=2 if level is None else level,
        passes=passes,
        opset=options["opset"],
        target=options["target"],
        keep_fused=options["keep_fused"],
        functions=options["functions"],
        remarks=options["remarks"],
        dims=dims,
        shapes=shapes,
        inputs=_names(options["inputs"]),
        outputs=_names(options["outputs"]),
        with_shapes=options["with_shapes"],
        parity=not options["no_parity"],
        require_parity=options["require_parity"],
        given=options["given"],
        runs=options["runs"],
        seed=options["seed"],
        rtol=options["rtol"],
        bisect=options["bisect"],
        print_ir=options["print_ir_after_all"],
        trace=options["trace_folder"],
        ledger=options["ledger"],
        verify_each=options["verify_each"],
        as_json=options["as_json"],
    )


def _names(items: tuple[str, ...]) -> list[str]:
    """Names from options that may be repeated or hold several, separated by commas."""
    return [name for item in items for name in item.split(",") if name]


def carry_out(request: Request) -> Outcome:
    """Do it all. Nothing is left behind, and the output untouched, if anything fails or parity does."""
    stopwatch = Stopwatch()
    log = DiagnosticLog()
    with ExitStack() as stack:
        request.trace = trace_folder(request.trace, request.ledger, stack)
        progress = stack.enter_context(Progress(4, disable=request.as_json or request.print_ir))
        progress.start("reading")
        with stopwatch("read"):
            original = open_model(request.model, log)
            size = stored_bytes(original)
            opset = original.module.opsets.get("")
        # Before any work is done, so that a mistake in the command line is known at once.
        baseline = baseline_of(request, original) if request.parity else None
        given = given_inputs(request, baseline) if baseline is not None else {}
        progress.start("rewriting")
        with stopwatch("rewrite"):
            report = rewrite(request, original, log, progress)
        scratch = stack.enter_context(scratch_folder(request.output))
        progress.start("writing")
        with stopwatch("write"):
            written = tilewright.save(
                report.module,
                scratch / request.output.name,
                request.opset,
                request.target,
                request.keep_fused,
                request.with_shapes,
                functions=request.functions,
                clean=request.level > 0 or request.passes is not None,
                log=log,
            )
            report.pipeline.diagnostics = log.diagnostics[:]
        report.after = ModelSummary(written.operators, report.after.weight_bytes)
        opsets = opset, report.module.opsets.get("")
        outcome = Outcome(report, opsets, (size, written.nbytes), written.in_functions, stopwatch=stopwatch)
        if request.ledger and request.trace is not None:
            outcome.ledger = read_ledger(request.trace)
        if baseline is not None:
            progress.start("checking")
            with stopwatch("check"):
                outcome.parity = check(request, baseline, given, Model(report.module, "the result", written.path))
            if outcome.failed and request.bisect:
                progress.start("bisecting")
                outcome.culprit = find_culprit(request, outcome.parity)
        checked = outcome.parity is None or outcome.parity.passed
        if checked or not (outcome.failed or request.require_parity):
            put_into_place(scratch, request.output)
            outcome.written = request.output
    show_diagnostics(log.diagnostics)
    return outcome


def makes_functions(request: Request) -> bool:
    """Whether operators of any target may be used; with --keep-fused they would be written as they are."""
    return request.functions and not request.keep_fused


def rewrite(request: Request, original: Model, log: DiagnosticLog, progress: Progress) -> OptimizeReport:
    """Run the passes on the module of `original`."""
    from tilewright.passes.instruments import Instrument, PrintIR
    from tilewright.passes.trace import Trace

    instruments: list[Instrument] = [progress.instrument()]
    if request.print_ir:
        instruments.append(PrintIR("after"))
    trace = Trace(request.trace) if request.trace is not None else None
    return tilewright.optimize(
        original.module,
        request.level,
        request.passes,
        request.opset,
        request.target,
        functions=makes_functions(request),
        dims=request.dims,
        shapes=request.shapes,
        inputs=request.inputs,
        outputs=request.outputs,
        trace=trace,
        instruments=instruments,
        verify_each=request.verify_each,
        original_bytes=stored_bytes(original),
        log=log,
    )


def baseline_of(request: Request, original: Model) -> Model:
    """What the result is held against: the original, or the part that is to be cut out of it, not rewritten."""
    module = clone_module(original.module)
    first = interface_passes(inputs=request.inputs, outputs=request.outputs)
    if not first:
        return Model(module, "the original", original.source)
    tilewright.PassManager.parse(",".join(first)).run(module)
    return Model(module, "the part of the original", None)


def given_inputs(request: Request, baseline: Model) -> dict[str, Any]:
    """The inputs of --input. Raises UsageError, OSError if they cannot be read or do not fit the model."""
    if not request.given:
        return {}
    from tilewright.backends.feeds import FeedPlan
    from tilewright.tools._inputs import read_inputs

    given = read_inputs(baseline.module, request.given)
    FeedPlan(baseline.module, request.dims, request.shapes, given)
    return given


def check(request: Request, baseline: Model, given: dict[str, Any], result: Model) -> ParityReport:
    """Whether the written result agrees with the baseline on made-up and on given inputs."""
    from tilewright.backends.feeds import FeedPlan
    from tilewright.backends.parity import PlannedRuns
    from tilewright.backends.parity_sides import compare_models

    sizes = (request.dims, request.shapes)
    planned = [PlannedRuns(FeedPlan(baseline.module, *sizes, within=result.module), request.runs)]
    if given:
        planned.append(PlannedRuns(FeedPlan(baseline.module, *sizes, given, within=result.module), 1))
    return compare_models(baseline, result, "onnxruntime", planned, seed=request.seed, tolerance=request.rtol)


def find_culprit(request: Request, parity: ParityReport) -> BisectResult | None:
    """The pass and rewrite that changed the results; None if no pass does so in the reference interpreter."""
    from tilewright.passes.bisect import bisect
    from tilewright.passes.context import PassContext
    from tilewright.passes.pipelines import EXACTNESS, preset

    module = open_model(request.model, DiagnosticLog()).module
    failed = next((each for each in parity.runs if not all(found.passed for found in each.outputs.values())), None)
    if failed is None:
        return None
    first = interface_passes(request.dims, request.shapes, request.inputs, request.outputs)
    if first:
        tilewright.PassManager.parse(",".join(first)).run(module)
    context = PassContext()
    if request.passes is None:
        context.exactness = EXACTNESS[request.level]
    pipeline = request.passes
    if pipeline is None:
        pipeline = preset(request.level, request.target, makes_functions(request))

    def evaluate(candidate: Any, feeds: Any) -> dict[str, Any]:
        return tilewright.compile(candidate).run(feeds)

    return bisect(module, pipeline, evaluate, failed.feeds, tolerance=request.rtol, context=context)


# ---- files -----------------------------------------------------------------------------------------------------------


@contextmanager
def scratch_folder(output: Path) -> Iterator[Path]:
    """A folder on the same disk as `output`, so that files move into place in one step. Removed at the end."""
    where = output.parent if not is_special(output) else Path(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix=".tilewright-", dir=where) as folder:
        yield Path(folder)


def put_into_place(scratch: Path, output: Path) -> None:
    """Move what was written beside `output`: first the files it refers to, then the model itself."""
    if is_special(output):
        shutil.copyfile(scratch / output.name, output)
        return
    if output.exists():
        shutil.copymode(output, scratch / output.name)
    for path in sorted(scratch.iterdir(), key=lambda path: path.name == output.name):
        replace_file(path, output.parent / path.name)


def is_special(path: Path) -> bool:
    """Whether `path` is a device such as /dev/null, which must not be replaced by a file."""
    return path.exists() and not path.is_file()


# ---- report ----------------------------------------------------------------------------------------------------------


def as_dict(request: Request, outcome: Outcome) -> dict[str, Any]:
    before, after = outcome.bytes
    return {
        "model": request.model,
        "output": str(outcome.written) if outcome.written is not None else None,
        "opset": {"before": outcome.opsets[0], "after": outcome.opsets[1]},
        "file_bytes": {"before": before, "after": after},
        **outcome.report.to_dict(),
        "nodes_in_functions": outcome.in_functions,
        **({"ledger": outcome.ledger.to_dict()} if outcome.ledger is not None else {}),
        "parity": outcome.parity.to_dict() if outcome.parity is not None else None,
        "culprit": str(outcome.culprit) if outcome.culprit is not None else None,
        "seconds_by_step": outcome.stopwatch.seconds,
        **({"remarks": remarks_of(outcome.report).to_dict()} if request.remarks else {}),
    }


def show(request: Request, outcome: Outcome) -> None:
    """The report for people."""
    out = console()
    out.print(request.model, style="bold")
    out.print()
    out.print(operator_table(outcome))
    out.print()
    if outcome.ledger is not None:
        show_ledger(outcome.ledger, outcome.report.after.nodes)
    if outcome.parity is not None:
        show_parity(outcome.parity)
    if outcome.culprit is not None:
        out.print(f"culprit  {outcome.culprit}", style="red")
    remarks = remarks_of(outcome.report)
    if request.remarks:
        show_remarks(remarks)
    for missed in remarks.attention:
        out.print(f"note     {missed.message}, at {missed.location}")
    newer = sum(d.code == "export/newer-opset" for d in remarks.others)
    if newer and not request.remarks:
        out.print(f"note     {newer} written as parts that a newer opset has an operator for: see --remarks, --opset")
    steps = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in outcome.stopwatch.seconds.items())
    out.print(f"time     {steps}")
    if outcome.written is not None:
        out.print(f"wrote    {outcome.written}")
        return
    out.print("wrote    nothing", style="red")
    if outcome.failed and outcome.parity is not None and not outcome.parity.worst:
        out.print("         --no-parity writes it unchecked")  # there are no results that a rewrite could have changed
    elif outcome.failed and not request.bisect:
        out.print("         --bisect finds the rewrite that is to blame")


def operator_table(outcome: Outcome) -> Any:
    before, after = outcome.report.before, outcome.report.after
    made = table("operator", "before", "after", "change")
    names = sorted({*before.operators, *after.operators}, key=lambda name: (-before.operators[name], name))
    changed = [name for name in names if before.operators[name] != after.operators[name]]
    for name in changed:
        mine, other = before.operators[name], after.operators[name]
        made.add_row(name, f"{mine:,}" if mine else "", f"{other:,}" if other else "", f"{other - mine:+,}")
    kinds = len(names) - len(changed)
    same = sum(before.operators[name] for name in names if name not in changed)
    if kinds:
        made.add_row(f"{kinds} {'operator' if kinds == 1 else 'operators'} unchanged", f"{same:,}", f"{same:,}", "")
    made.add_section()
    made.add_row("nodes", f"{before.nodes:,}", f"{after.nodes:,}", change_text(before.nodes, after.nodes))
    if outcome.in_functions:
        made.add_row("  in the graph itself", "", f"{after.nodes - outcome.in_functions:,}", "")
        made.add_row("  in bodies of functions", "", f"{outcome.in_functions:,}", "")
    size, new_size = outcome.bytes
    made.add_row(
        "file size", size_text(size) if size else "", size_text(new_size), change_text(size, new_size) if size else ""
    )
    if outcome.opsets[0] != outcome.opsets[1]:
        made.add_row("opset", *(str(opset or "") for opset in outcome.opsets), "")
    return made
