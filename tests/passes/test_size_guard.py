"""A result of `optimize` that would be larger than the original is made in another way, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright import Builder, Module, f32
from tilewright.graph.diagnostics import DiagnosticLog
from tilewright.passes.optimize import OptimizeReport, optimize
from tilewright.passes.size_guard import Attempt, first_that_fits


def module_with_copies() -> Module:
    b = Builder("m", opset=21)
    x = b.input("x", f32["n", 4])
    b.output(b.relu(b.identity(b.identity(x))), "y")
    return b.build()


def sizes_after(sizes: list[int], limit: int) -> tuple[Module, OptimizeReport, DiagnosticLog]:
    """The outcome where the written sizes of the attempts are `sizes`."""
    module = module_with_copies()
    left = iter(sizes)

    def attempt(passes: str, note: str = "") -> Attempt:
        return Attempt(lambda log, original: optimize(module, passes=passes), note)

    attempts = [attempt("remove-identity"), attempt("cse,dce", "less was done"), attempt("", "nothing was done")]
    # A small model tells nothing by its estimate: what is saved is less than what an estimate may be off by.
    report, log = first_that_fits(module, attempts, lambda _: next(left), lambda _: limit)
    return module, report, log


@pytest.mark.parametrize(("size", "operators", "note"), [(100, 1, ""), (101, 3, "less was done")])
def test_one_byte_decides(size: int, operators: int, note: str) -> None:
    module, report, log = sizes_after([size, 90], limit=100)
    assert report.after.nodes == operators
    assert [d.code for d in log.diagnostics] == (["optimize/size"] if note else [])
    assert all(note in d.message for d in log.diagnostics)
    assert sum(op.name == "identity" for op in module.walk()) == operators - 1


def test_products_with_a_bias_do_not_grow() -> None:
    """Reshapes around each Gemm could take more bytes than the additions that they save."""
    b = Builder("m", opset=21)
    x = b.input("x", f32[2, 16, 32])
    hidden = x
    for _ in range(3):
        weight = np.ones((32, 32), np.float32)
        hidden = b.add(b.matmul(hidden, weight), np.ones(32, np.float32))
    b.output(hidden, "y")
    module = b.build()
    before = len(tilewright.to_bytes(module))
    tilewright.optimize(module)
    assert len(tilewright.to_bytes(module)) <= before
