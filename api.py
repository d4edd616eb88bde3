"""The functions of the public interface that stand on all parts of the package."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, Unpack

from .backends.model_source import ModelLike, open_model, stored_bytes

if TYPE_CHECKING:
    from onnx import ModelProto

    from .backends.executable import Executable
    from .backends.parity import ParityReport
    from .graph.diagnostics import DiagnosticLog
    from .graph.module import Module
    from .importers.onnx.stream import WrittenModel
    from .importers.onnx.write import WriteOptions
    from .passes.inspection import ModelFacts
    from .passes.instruments import Instrument
    from .passes.optimize import OptimizeReport
    from .passes.trace import Trace

# What an operator of ONNX Runtime may take in a file beyond those that it stands for: the name of its domain, that of
# an activation. Whoever asks for such operators does not mind.
RUNTIME_OPERATOR_BYTES = 64


def optimize(
    model: ModelLike,
    level: int = 2,
    passes: str | Sequence[str] | None = None,
    opset: int | None = None,
    target: str = "onnx",
    *,
    functions: bool = False,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: str | Sequence[str] = (),
    outputs: str | Sequence[str] = (),
    trace: Trace | None = None,
    instruments: Iterable[Instrument] = (),
    verify_each: bool = False,
    original_bytes: int | None = None,
    log: DiagnosticLog | None = None,
) -> OptimizeReport:
    """Rewrite a model into one that computes the same with less; a Module is rewritten in place (`report.module`).

    Args:
        level: 0 nothing, 1 bit-exact rewrites, 2 also reassociation and recomposition, 3 also rewrites with a stated
            error or that take more time.
        passes: a pipeline such as "fold,cse,dce", or a list of passes, to run in the place of the level's.
        opset: version of the default domain under which the module will be written (default: its own).
        target: "onnx" for standard operators only, "onnxruntime" to use those of com.microsoft, too; give the same
            target to `save`.
        functions: use all fused operators there are, for those that the target lacks become functions of the model,
            whose bodies are standard operators; give it to `save`, too.
        dims, shapes: sizes for dims by name, shapes for inputs by name; the result takes no other sizes.
        inputs, outputs: names of tensors between which to keep the model; the rest is dropped.
        trace: records every rewrite, see `passes.trace`.
        instruments: watch the passes, see `passes.instruments`.
        verify_each: verify the module after each pass that changed it.
        original_bytes: size of the file that a Module came from, which the result may not outgrow.
        log: receives warnings and remarks.

    Raises ModelError for a bad model, UsageError for a level, pass, dim or tensor that does not exist, PassError if a
    pass fails. The report counts nodes as they are written at `opset` for `target`, where a fused operator may be
    several.
    """
    from .graph.diagnostics import DiagnosticLog, require
    from .passes.context import PassContext
    from .passes.optimize import optimize as run
    from .passes.pipeline_text import pipeline_text
    from .passes.pipelines import EXACTNESS, preset
    from .passes.size_guard import Attempt, first_that_fits

    log = DiagnosticLog() if log is None else log
    require("level", level, int, "a number from 0 to 3")
    require("opset", opset, (int, NoneType), "the version of an opset")
    given = None if passes is None else pipeline_text(passes)
    opened = open_model(model, log)
    writer = _Writer(target, functions, clean=level > 0 or given is not None)
    first = interface_passes(dims, shapes, inputs, outputs)
    size = stored_bytes(opened) if original_bytes is None else original_bytes

    def attempt(rest: str, may_grow: bool, log: DiagnosticLog, original: Module | None = None) -> OptimizeReport:
        writer.operators = None
        context = PassContext(log=log, trace=trace, original_bytes=size, original=original, may_grow=may_grow)
        if given is None:
            context.exactness = EXACTNESS.get(level, context.exactness)
        # An empty pipeline leaves nothing to come after the first passes.
        pipeline = ",".join([*first, *([rest] if rest else [])])
        report = run(
            opened.module,
            level,
            pipeline,
            opset,
            target,
            context=context,
            instruments=instruments,
            verify_each=verify_each,
        )
        report.level = level if given is None else None
        return report

    if given is not None:
        report = attempt(given, True, log)
        opened.module.is_optimized = True
        return writer.counted(report)
    name = preset(level, target, functions)
    attempts = [
        Attempt(partial(attempt, name, True)),
        Attempt(partial(attempt, name, False), "rewrites that add bytes to save operations were left out"),
        Attempt(partial(attempt, preset(min(level, 1), target, functions), False), "only bit-exact rewrites were made"),
        Attempt(partial(attempt, "", False), "it was left as it is"),
    ]
    limit = partial(_most_bytes, size, ",".join(first), opset, writer)
    report, found = first_that_fits(opened.module, attempts, writer, limit, size)
    opened.module.is_optimized = level > 0
    log.diagnostics += found.diagnostics
    report.pipeline.diagnostics = log.diagnostics[:]
    # Without a new operator or opset, which is when the writer was not asked, every operation is written as one node.
    as_it_is = writer.operators is None and opset is None and not functions
    return report if as_it_is else writer.counted(report)


def save(
    module: Module,
    path: str | os.PathLike[str],
    opset: int | None = None,
    target: str = "onnx",
    keep_fused: bool = False,
    with_shapes: bool = False,
    external: bool | None = None,
    functions: bool = False,
    clean: bool | None = None,
    log: DiagnosticLog | None = None,
) -> WrittenModel:
    """Write `module` to `path`, all or nothing: a failure leaves what was there. `module` stays as it is.

    Args:
        opset: version of the default domain to write; by default the module's own. An operator without a form there
            is decomposed.
        target: "onnx" for a file that any runtime reads, "onnxruntime" to allow com.microsoft operators.
        keep_fused: write every operator that the opset has as it is: also of domains that the model did not have
            before, and fused ones that ONNX Runtime cannot run or runs slower than their parts.
        with_shapes: list the shapes of all tensors that have a known rank in `value_info`; by default only of those
            that the file it came from listed.
        external: True puts weights in a file `NAME.onnx.data` beside the model, False never does; None does for a
            model of 2 GiB and more.
        functions: write fused operators that would be written as their parts as calls of model-local functions, whose
            bodies are these parts; the file needs IR version 8.
        clean: where operators are written as their parts, also make the bit-exact rewrites that this allows: fold
            what is constant, drop what is not needed, compute once what is computed twice. None does so if the module
            has been optimized; parameters of one that has not are all kept.
        log: receives a remark for each operator that was written as its parts, with the reason.

    Weights are copied from file to file, never through memory. Raises ExportError naming everything that cannot be
    written, UsageError for a folder or a file in a missing one, OSError if the disk refuses.
    """
    from .importers.onnx import save as write

    return write(
        module, path, opset, target, keep_fused, with_shapes, external, functions, log, _cleaning(module, clean)
    )


def to_bytes(module: Module, clean: bool | None = None, **options: Unpack[WriteOptions]) -> bytes:
    """The encoded model with all weights inside; options as for `save`. Raises ExportError above 2 GiB."""
    from .importers.onnx import to_bytes as write

    options.setdefault("tidy", _cleaning(module, clean))
    return write(module, **options)


def to_proto(module: Module, clean: bool | None = None, **options: Unpack[WriteOptions]) -> ModelProto:
    """The model as a message, with a copy of all weights inside; options as for `save`."""
    from .importers.onnx import to_proto as write

    options.setdefault("tidy", _cleaning(module, clean))
    return write(module, **options)


def _cleaning(module: Module, clean: bool | None) -> Callable[[Module], None] | None:
    # What is no module is refused by the writer, which says what it is.
    return tidy if (getattr(module, "is_optimized", False) if clean is None else clean) else None


def tidy(module: Module) -> None:
    """Bit-exact rewrites of a module in which fused operators were replaced by their parts."""
    from .passes.context import PassContext
    from .passes.manager import PassManager

    PassManager.parse("tidy").run(module, PassContext(exactness="bit-exact", may_grow=False))


class _Writer:
    """Asks the writer about modules as files. `operators` are the nodes that it would write of the last of them."""

    def __init__(self, target: str, functions: bool = False, clean: bool = True) -> None:
        self.target, self.functions = target, functions
        self.tidy = tidy if clean else None
        self.operators: Counter[str] | None = None

    def __call__(self, module: Module) -> int:
        """What a module takes as a file, less what operators of ONNX Runtime, or functions in their place, may add.

        0 if it cannot be written, of which whoever saves it will hear.
        """
        from .graph.diagnostics import ExportError
        from .importers.onnx import written_contents

        self.operators = None
        try:
            target = "onnxruntime" if self.functions else self.target
            contents = written_contents(module, target=target, tidy=self.tidy)
            self.operators = contents.operators
            if self.functions:
                self.operators = written_contents(module, target=self.target, functions=True, tidy=self.tidy).operators
        except ExportError:
            return 0
        own = sum(count for name, count in contents.operators.items() if name.startswith("com.microsoft::"))
        return contents.nbytes - own * RUNTIME_OPERATOR_BYTES

    def counted(self, report: OptimizeReport) -> OptimizeReport:
        """`report` with the nodes that are written; those in memory if the module cannot be written."""
        if self.operators is None:
            self(report.module)
        if self.operators is not None:
            report.after = replace(report.after, operators=self.operators)
        return report


def _most_bytes(known: int, passes: str, opset: int | None, writer: _Writer, original: Module) -> int:
    """What the result of optimizing may take: the size of the original's file, or more if `passes` and `opset`, which
    the user asked for, take more on their own."""
    from .passes.manager import PassManager

    if not known:
        known = _Writer(writer.target)(original)
        if not passes and opset is None:
            return known
    PassManager.parse(passes).run(original)
    if opset is not None:
        original.opsets[""] = opset
    return max(known, _Writer(writer.target)(original))


def interface_passes(
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: str | Sequence[str] = (),
    outputs: str | Sequence[str] = (),
) -> list[str]:
    """The passes, as pipeline text, that cut a model and bind its dims, in this order."""
    from .graph.diagnostics import require

    require("dims", {} if dims is None else dims, Mapping, "a dict of sizes by the name of a dim")
    require("shapes", {} if shapes is None else shapes, Mapping, "a dict of shapes by the name of an input")
    for name, shape in (shapes or {}).items():
        require(f"the shape of {name}", shape, (list, tuple), "a list of sizes")
    inputs, outputs = ([names] if isinstance(names, str) else names for names in (inputs, outputs))
    passes = []
    if inputs or outputs:
        options = [f"inputs={_words(inputs)}"] if inputs else []
        options += [f"outputs={_words(outputs)}"] if outputs else []
        passes.append(f"cut{{{' '.join(options)}}}")
    if dims or shapes:
        sizes = [f"{name}={size}" for name, size in (dims or {}).items()]
        given = [f"{name}:{','.join(map(str, shape))}" for name, shape in (shapes or {}).items()]
        options = [f"dims={_words(sizes)}"] if sizes else []
        options += [f"shapes={_words(given)}"] if given else []
        passes.append(f"bind-dims{{{' '.join(options)}}}")
    return passes


def _words(items: Iterable[str]) -> str:
    return f"[{', '.join(json.dumps(item, ensure_ascii=False) for item in items)}]"


def compile(
    model: ModelLike,
    target: str = "cpu",
    threads: int | None = None,
    precision: str = "float32",
    tune: str = "off",
) -> Executable:
    """Make a model ready to run: `compile(model).run({"x": array})` gives `{"y": array}`.

    `tune` says how kernels of the cpu target are chosen: "off" by an estimate, always the same; "fast" and "full" by
    measuring, within seconds or minutes, once for each kernel and processor. `report()["candidates"]` shows it.
    Raises ModelError for a bad model, UsageError for a target, precision or way to tune that does not exist.
    """
    from .backends.target import compile_module

    return compile_module(open_model(model).module, target, threads, precision, tune)


def load_executable(path: str | os.PathLike[str], threads: int | None = None) -> Executable:
    """The executable that `Executable.save` or `tilewright compile` wrote (`.twx`), without compiling anything.

    It is machine code: load only files that you trust. Raises UsageError if it is damaged, or made for another
    processor or by another version.
    """
    from .backends.cpu.executable import load

    return load(path, threads)


def parity(
    model: ModelLike,
    against: ModelLike = "onnxruntime",
    feeds: Mapping[str, Any] | None = None,
    *,
    runs: int = 2,
    seed: int = 0,
    rtol: float | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    target: str = "reference",
    engine: str = "onnxruntime",
    log: DiagnosticLog | None = None,
) -> ParityReport:
    """Whether two models, or a model here and in another runtime, compute the same.

    With a second model in `against`, `model` is the original and right: both are run by `engine`, and the second must
    give what the first gives. With "onnxruntime" or "reference" there, that runtime is right: `model` is compiled for
    `target` and must give what it gives there.

    Agreement: equal shapes, dtypes and positions of NaN and infinities, and `max|a - b| <= rtol * max|b|` for each
    output, b being the right one; integers, bools and strings equal.

    Args:
        feeds: inputs to run on, once; inputs left out are made up. None: `runs` runs on inputs that are made up from
            `seed`, of sizes that differ from run to run where the model leaves them open; two models with masks
            make one or two runs more, with masks of which a row hides everything.
        rtol: replaces the tolerance of floating-point outputs, which goes by their type: 1e-4 for float32, 1e-9 for
            float64, 4 units in the last place for float16 (0.004) and bfloat16 (0.03), 1 for float8.
        dims, shapes: sizes to use for dims by name, and for inputs by name.
        engine: "onnxruntime" (its optimizations disabled) or "reference". Where ONNX Runtime is not installed or cannot
            run the original, the reference interpreter runs both, and a note in the report says so.

    Raises ModelError for a bad model, UsageError for names that do not exist.
    """
    from .backends.parity_sides import compare_models, compare_runtimes, planned_runs
    from .graph.diagnostics import require

    require("feeds", {} if feeds is None else feeds, Mapping, "a dict of arrays by input name")
    require("runs", runs, int, "a number of runs")
    original = open_model(model, log)
    if isinstance(against, str) and against in ("onnxruntime", "reference"):
        planned = planned_runs(original.module, None, feeds, runs, dims, shapes)
        return compare_runtimes(original, against, target, planned, seed=seed, tolerance=rtol)
    new = open_model(against, log)
    planned = planned_runs(original.module, new.module, feeds, runs, dims, shapes)
    return compare_models(original, new, engine, planned, seed=seed, tolerance=rtol)


def inspect(
    model: ModelLike, dims: Mapping[str, int] | None = None, shapes: Mapping[str, Sequence[int]] | None = None
) -> ModelFacts:
    """Facts about a model: interface, operators, parameters, arithmetic, bytes.

    `dims` gives sizes to dims by name and `shapes` to inputs by name, so that arithmetic can be counted. Raises
    ModelError for a bad model, UsageError for names that do not exist.
    """
    from .passes.inspection import inspect_module

    opened = open_model(model)
    return inspect_module(opened.module, dims, shapes, stored_bytes(opened))


def gradient(
    model: ModelLike,
    of: str,
    wrt: Any,
    *,
    stops: str = "list",
    unconnected: str = "error",
    log: DiagnosticLog | None = None,
) -> Module:
    """A model that also computes the gradient of the scalar `of`: its outputs are those of `model`, then one for each
    tensor in `wrt`, in order, called `NAME_grad`. `model` stays as it is.

    Args:
        of: name of an output, or of another tensor, with one element.
        wrt: names of inputs, initializers or other float tensors; a list, or any nesting of dicts, lists and tuples.
        stops: what happens where a path ends in an operation without a derivative (Floor, ArgMax, ...): "stop", "list"
            (a remark in `log` for each), or "error".
        unconnected: "error", or "zeros" for a tensor that `of` does not depend on.

    The result is an ordinary model, to be optimized, saved, run, and differentiated again. Raises UsageError for names
    that do not exist, and GradientError, which lists all reasons with their places, if there is no such gradient.
    """
    from .graph.diagnostics import require
    from .passes.training.gradient import gradient as run

    require("of", of, str, "the name of a tensor")
    return run(open_model(model).module, of, wrt, stops=stops, unconnected=unconnected, log=log)


def vjp(model: ModelLike, of: Any, wrt: Any, *, stops: str = "list", log: DiagnosticLog | None = None) -> Module:
    """A model that also computes J^T u, for the Jacobian J of the tensors `of` with respect to those in `wrt`.

    Further inputs: `NAME_cotangent` for each of `of`. Further outputs: `NAME_grad` for each of `wrt`.
    """
    from .passes.training.gradient import vjp as run

    return run(open_model(model).module, of, wrt, stops=stops, log=log)


def jvp(model: ModelLike, of: Any, wrt: Any, *, stops: str = "list", log: DiagnosticLog | None = None) -> Module:
    """A model that also computes J v: how the tensors `of` change when those in `wrt` move along v (forward mode).

    Further inputs: `NAME_tangent` for each of `wrt`. Further outputs: `NAME_tangent` for each of `of`.
    """
    from .passes.training.gradient import jvp as run

    return run(open_model(model).module, of, wrt, stops=stops, log=log)


def hvp(model: ModelLike, of: str, wrt: Any, *, stops: str = "list", log: DiagnosticLog | None = None) -> Module:
    """A model that also computes H v, for the Hessian H of the scalar `of` with respect to the tensors in `wrt`.

    Further inputs: `NAME_vector` for each of `wrt`. Further outputs: `NAME_hvp` for each of `wrt`.
    """
    from .passes.training.gradient import hvp as run

    return run(open_model(model).module, of, wrt, stops=stops, log=log)


__all__ = ["compile", "gradient", "hvp", "inspect", "interface_passes", "jvp", "optimize", "parity", "vjp"]
