"""gradient: extend the graph by the derivative of a scalar. Level onnx.

The backward graph is made of ordinary operations (Griewank and Walther 2008, chapter 3: reverse accumulation), so that
every pass, the writer and a second `gradient` take it. The outputs stay; one more for each tensor in `wrt` follows.

    gradient{of=y wrt=[x]}
    func @main(%x: f32[]) -> (%y: f32[]) {          func @main(%x: f32[]) -> (%y: f32[], %x_grad: f32[]) {
      %y = exp %x : f32[]                     ->      %y = exp %x : f32[]
      return %y                                       %1 = mul 1.0, %y : f32[]
    }                                                 return %y, %1
                                                    }
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...graph.clone import clone_module
from ...graph.diagnostics import DiagnosticLog, UsageError
from ..base import Pass
from ..context import PassContext
from ..infer_shapes import InferShapes
from ..inline_functions import InlineFunctions
from .derivation import Derivation, leaves
from .expand_gradient import ExpandGradient, has_gradient

if TYPE_CHECKING:
    from ...graph.gradients.sweep import Stops
    from ...graph.module import Module

# Calls of model-local functions are opened whatever their size: a derivative looks at what they do.
_ANY_SIZE = 1 << 30


@dataclass(frozen=True)
class Gradient(Pass):
    """Add the gradient of the scalar `of` with respect to each tensor in `wrt`, as outputs.

    `stops` says what to do with paths that end in an operation without a derivative (Floor, ArgMax, ...): "stop",
    "list" them as remarks, or "error". `unconnected` is "error", or "zeros": what to give for a tensor that the loss
    does not depend on. Raises GradientError with all reasons if a derivative cannot be built.
    """

    name = "gradient"

    of: str = ""
    wrt: tuple[str, ...] = ()
    stops: str = "list"
    unconnected: str = "error"

    def run(self, module: Module, context: PassContext) -> bool:
        if not context.may_apply:
            return False
        _prepare(module, context)
        _append_gradient(module, self.of, self.wrt, self.stops, self.unconnected, context.log)
        return True


def gradient(
    module: Module,
    of: str,
    wrt: Any,
    *,
    stops: str = "list",
    unconnected: str = "error",
    log: DiagnosticLog | None = None,
) -> Module:
    """A copy of `module` with one further output for each tensor in `wrt`: the gradient of the scalar `of`."""
    copy = _copied(module)
    _append_gradient(copy, of, leaves(wrt), stops, unconnected, log)
    return copy


def vjp(module: Module, of: Any, wrt: Any, *, stops: str = "list", log: DiagnosticLog | None = None) -> Module:
    """A copy of `module` that also computes J^T u, for the Jacobian J of the tensors `of` with respect to `wrt`.

    For each tensor in `of` there is a further input `NAME_cotangent` of its type, for each in `wrt` a further output
    `NAME_grad`; zeros where nothing depends on it.
    """
    copy = _copied(module)
    at = Derivation(copy, _checked(stops), log)
    names, sources = leaves(of), leaves(wrt)
    targets, variables = at.variables(names), at.variables(sources)
    seeds = {value: at.add_input(f"{name}_cotangent", value) for name, value in zip(names, targets, strict=True)}
    found = at.or_zeros(at.adjoints(seeds, variables), variables)
    at.finish([(f"{name}_grad", value) for name, value in zip(sources, found, strict=True)])
    return copy


def jvp(module: Module, of: Any, wrt: Any, *, stops: str = "list", log: DiagnosticLog | None = None) -> Module:
    """A copy of `module` that also computes J v: how `of` changes when `wrt` moves along v (forward mode).

    For each tensor in `wrt` there is a further input `NAME_tangent`, for each in `of` a further output `NAME_tangent`.
    J^T u is linear in u, so its own J^T, in the direction v, is J v: two reverse sweeps, of which what depends on u
    is dropped. The graph costs about as much as a forward sweep.
    """
    copy = _copied(module)
    at = Derivation(copy, _checked(stops), log)
    names, sources = leaves(of), leaves(wrt)
    targets, variables = at.variables(names), at.variables(sources)
    tangents = [at.add_input(f"{name}_tangent", value) for name, value in zip(sources, variables, strict=True)]
    builder = at.sweep().builder
    seeds = {value: builder.zeros_like(value) for value in targets}
    pulled = at.adjoints(seeds, variables)
    again = {value: tangent for value, tangent in zip(pulled, tangents, strict=True) if value is not None}
    found = at.or_zeros(at.adjoints(again, list(seeds.values())), targets)
    at.finish([(f"{name}_tangent", value) for name, value in zip(names, found, strict=True)])
    return copy


def hvp(module: Module, of: str, wrt: Any, *, stops: str = "list", log: DiagnosticLog | None = None) -> Module:
    """A copy of `module` that also computes H v, for the Hessian H of the scalar `of` with respect to `wrt`.

    For each tensor in `wrt` there are a further input `NAME_vector` and a further output `NAME_hvp`: the gradient of
    the gradient's product with v. Zeros where the second derivative is.
    """
    copy = _copied(module)
    at = Derivation(copy, _checked(stops), log)
    sources = leaves(wrt)
    loss, variables = at.loss(of), at.variables(sources)
    vectors = [at.add_input(f"{name}_vector", value) for name, value in zip(sources, variables, strict=True)]
    first = at.connected(at.adjoints({loss: at.ones(loss)}, variables), sources, of)
    builder = at.sweep().builder
    # A value may be the gradient of two tensors, and then has two vectors.
    apart = [builder.identity(value) for value in first]
    found = at.or_zeros(at.adjoints(dict(zip(apart, vectors, strict=True)), variables), variables)
    at.finish([(f"{name}_hvp", value) for name, value in zip(sources, found, strict=True)])
    return copy


def _copied(module: Module) -> Module:
    copy = clone_module(module)
    _prepare(copy, PassContext())
    return copy


def _prepare(module: Module, context: PassContext) -> None:
    if module.functions:
        InlineFunctions(max_body=_ANY_SIZE).run(module, context)
    if has_gradient(module):
        ExpandGradient().run(module, context)
    InferShapes().run(module, context)


def _append_gradient(
    module: Module, of: str, wrt: Any, stops: str, unconnected: str, log: DiagnosticLog | None
) -> None:
    if unconnected not in ("error", "zeros"):
        raise UsageError("gradient/unconnected", f"unconnected must be error or zeros, not {unconnected!r}")
    at = Derivation(module, _checked(stops), log)
    loss, variables = at.loss(of), at.variables(wrt)
    found = at.adjoints({loss: at.ones(loss)}, variables)
    values = at.or_zeros(found, variables) if unconnected == "zeros" else at.connected(found, wrt, of)
    at.finish([(f"{name}_grad", value) for name, value in zip(wrt, values, strict=True)])


def _checked(stops: Any) -> Stops:
    if stops not in ("stop", "list", "error"):
        raise UsageError("gradient/stops", f"stops must be stop, list or error, not {stops!r}")
    found: Stops = stops
    return found
