"""`optimize` never makes a file larger: what is tried where a result would be.

Passes may add bytes to have fewer operations: reshapes around a Gemm, copies of a loop's body, a small function in
every place where it was called. Mostly others free more. Where they do not, the same passes run again on a copy of the
original and leave such rewrites out, and where not even that helps, the module stays as it was.

Sizes come from the writer, to the byte; it is asked only where the estimate of `sizes` does not tell. That says nothing
about operators that the original did not have, which the writer may have to write as their parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..graph.clone import clone_module
from ..graph.diagnostics import DiagnosticLog
from .sizes import structure_bytes, written_bytes

if TYPE_CHECKING:
    from ..graph.module import Module
    from .optimize import OptimizeReport

# How far an estimate may be off: by this share of what is not weights, and by this many bytes.
ESTIMATE_SHARE, ESTIMATE_BYTES = 0.02, 64


class Attempt(NamedTuple):
    """One way to optimize. `run` rewrites the module in place and logs what it finds; `note` says what it left out.

    `run` also gets a copy of the module as it was.
    """

    run: Callable[[DiagnosticLog, Module], OptimizeReport]
    note: str = ""


def first_that_fits(
    module: Module,
    attempts: list[Attempt],
    size_of: Callable[[Module], int],
    limit: Callable[[Module], int],
    known: int = 0,
) -> tuple[OptimizeReport, DiagnosticLog]:
    """The report of the first attempt whose result takes no more bytes than the original does, else of the last one.

    `size_of` gives the bytes of a rewritten module as a file, `limit` what it may take, from a copy of the original;
    what takes no more than `known` is not asked about.
    The log that comes with the report has only the findings of that attempt.
    """
    original = clone_module(module)
    estimate, kinds = written_bytes(original), {op.definition for op in original.walk()}
    for attempt in attempts:
        if attempt is not attempts[0]:
            module.take_over(clone_module(original))
        log = DiagnosticLog()
        report = attempt.run(log, original)
        if not report.changed or attempt is attempts[-1]:
            break
        saved = estimate - written_bytes(module)
        is_told = kinds.issuperset(op.definition for op in module.walk())
        if is_told and saved > ESTIMATE_BYTES + ESTIMATE_SHARE * structure_bytes(original):
            break
        size = size_of(module)
        if size <= known or size <= limit(clone_module(original)):
            break
    if attempt.note:
        log.remark("optimize/size", f"the result would have been larger than the original, so {attempt.note}")
    return report, log
