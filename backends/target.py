"""The targets a model can be compiled for, and `compile_module`, which picks one by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ..graph.data import MISSING_WEIGHTS, UnresolvedData
from ..graph.diagnostics import ModelError, UsageError, require
from ..graph.module import Module
from .executable import Executable

# Name -> the module and name of its factory, `factory(module, threads=..., precision=...) -> Executable`.
# A factory is imported when it is first used.
TARGETS: dict[str, tuple[str, str]] = {
    "cpu": (".cpu.executable", "create"),
    "reference": (".reference.interpreter", "create"),
}

PRECISIONS = ("float32",)
# More are a mistake, and would take the memory or the threads of the machine.
MOST_THREADS = 1024


def compile_module(
    model: Module,
    target: str = "reference",
    threads: int | None = None,
    precision: str = "float32",
    tune: str = "off",
) -> Executable:
    """Make `model` runnable on `target`. Later changes of the module do not reach the result.

    `threads` limits the worker threads (default: what the process may use); the reference interpreter has one.
    `tune` is off, fast or full: whether kernels are chosen by measuring (see `cpu.tuner`).
    Raises UsageError for a target, precision or way to tune that does not exist, ModelError for a module that was
    read from text and has not found its weights.
    """
    if target not in TARGETS:
        raise UsageError(
            "compile/unknown-target",
            f"there is no target called {target!r}",
            notes=[f"the targets are {', '.join(TARGETS)}"],
        )
    if precision not in PRECISIONS:
        raise UsageError(
            "compile/unknown-precision",
            f"there is no precision called {precision!r}",
            notes=[f"the precisions are {', '.join(PRECISIONS)}"],
        )
    checked_threads(threads)
    _check_weights(model)
    model = _without_gradient(model)
    module, name = TARGETS[target]
    factory: Any = getattr(import_module(module, __package__), name)
    executable: Executable = factory(model, threads=threads, precision=precision, tune=tune)
    return executable


def compile_step(module: Module, threads: int | None, updates: Mapping[str, str], loss: str) -> Executable:
    """Like `compile_module(module, "cpu", threads)` for a training step: what `updates` names as the next value of an
    input can be written in its place, once the output `loss` has been looked at (see `cpu.step`)."""
    from .cpu.step import StepExecutable

    checked_threads(threads)
    return StepExecutable(_without_gradient(module), threads, updates, loss)


def checked_threads(threads: int | None) -> None:
    """Raises UsageError unless this is a number of threads, or nothing."""
    if threads is not None:
        require("threads", threads, int, "a number of threads")
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise UsageError("compile/threads", f"threads must be at least 1 and at most {MOST_THREADS}, got {threads}")


def _check_weights(model: Module) -> None:
    """Raises ModelError if text was read without weights that something needs."""
    consts = [
        op for op in model.operations() if op.name == "const" and isinstance(op.attributes.get("value"), UnresolvedData)
    ]
    missing = [f"%{op.results[0].name or '?'}: {op.results[0].type}" for op in consts if op.results[0].uses]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelError(
            "data/unresolved",
            f"{len(missing)} {'weight is' if len(missing) == 1 else 'weights are'} not loaded: "
            f"{', '.join(missing[:3])}{more}",
            notes=[MISSING_WEIGHTS],
        )


def _without_gradient(model: Module) -> Module:
    """`model` with the backward graph in the place of ONNX's operator Gradient, if it has that."""
    from ..graph.clone import clone_module
    from ..passes.context import PassContext
    from ..passes.training.expand_gradient import ExpandGradient, has_gradient

    if not has_gradient(model):
        return model
    copy = clone_module(model)
    ExpandGradient().run(copy, PassContext())
    return copy
