"""Checking derivatives by differences: in float64, along random directions, for each parameter.

The directional derivative <gradient, v> is compared with a difference of the function along v. The central difference
of fourth order (Fornberg 1988) leaves an error of about 1e-11 with a step of 1e-3, so that a wrong rule cannot hide in
the tolerance. A kink shows as two one-sided derivatives that differ, and is reported as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph import dtypes
from ...graph.clone import clone_module
from ...graph.core import Block, Operation, Value
from ...graph.data import ArrayData, TensorData
from ...graph.diagnostics import Diagnostic, TypeInferenceError, UsageError
from ...graph.evaluator import Evaluator
from ...graph.gradients.rules import find_parts, find_rule
from ...graph.infer import InferenceContext, infer_types
from ...graph.opdef import OpaqueDefinition, OpDefinition, Trait
from ...graph.rewriter import Rewriter
from ...graph.types import OptionalType, SequenceType, TensorType, Type, optional, sequence
from .derivation import leaves
from .dropout import replace_dropouts, training_dropouts
from .gradient import vjp
from .step_builder import StepBuilder

if TYPE_CHECKING:
    from ...graph.dtypes import DType
    from ...graph.module import Module

NARROW = ("f16", "bf16", "f32")
STEPS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
# Two estimates that agree this well (relative) are right.
ENOUGH = 1e-8
# Derivatives from the left and from the right that differ by more than this fraction are a kink's.
KINK = 1e-3


@dataclass(frozen=True)
class DirectionCheck:
    """One direction of one parameter: the derivative that the gradient says, and the one that differences show."""

    name: str
    shape: tuple[int, ...]
    analytic: float
    numeric: float
    scale: float  # the size of the derivative, against which errors are measured
    kink: bool

    @property
    def error(self) -> float:
        return abs(self.analytic - self.numeric) / self.scale if np.isfinite(self.analytic) else float("inf")


@dataclass
class GradientReport:
    """The outcome of `check_gradients`. `passed`: no parameter is off by more than `tolerance`, kinks left aside, of
    which not all directions may be."""

    tolerance: float
    checks: list[DirectionCheck] = field(default_factory=list)

    @property
    def failures(self) -> list[DirectionCheck]:
        return [each for each in self.checks if not each.kink and not each.error <= self.tolerance]

    @property
    def passed(self) -> bool:
        return any(not each.kink for each in self.checks) and not self.failures

    def __str__(self) -> str:
        width = max([9, *(len(each.name) for each in self.checks)])
        lines = [f"{'parameter':<{width}}  {'shape':<16} {'gradient':>14} {'differences':>14} {'error':>9}"]
        for name in dict.fromkeys(each.name for each in self.checks):
            worst = max(
                (each for each in self.checks if each.name == name), key=lambda each: (not each.kink, each.error)
            )
            verdict = "kink" if worst.kink else "ok" if worst.error <= self.tolerance else "WRONG"
            shape = "x".join(map(str, worst.shape)) or "scalar"
            numbers = f"{worst.analytic:>14.6g} {worst.numeric:>14.6g} {worst.error:>9.1e}"
            lines.append(f"{name:<{width}}  {shape:<16} {numbers}  {verdict}")
        return "\n".join(lines)


def check_gradients(
    module: Module,
    feeds: Mapping[str, Any],
    of: Any = None,
    wrt: Any = None,
    *,
    directions: int = 2,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> GradientReport:
    """Compare the gradients of `of` (default: all float outputs, weighted at random) with differences.

    `wrt` defaults to all float inputs and initializers. `feeds` gives the inputs. A Dropout in training form drops the
    same elements each time. Raises UsageError if there is nothing to check, or for what draws at random otherwise;
    GradientError if there is no gradient.
    """
    wide = as_float64(module)
    _hold_draws(wide, seed)
    names = leaves(of) if of is not None else _outputs(wide)
    sources = leaves(wrt) if wrt is not None else _parameters(wide)
    if not names or not sources:
        raise UsageError("gradient/nothing-to-check", "there is no float output, or no float input or initializer")
    graph = vjp(_with_inputs(wide, sources), names, sources, stops="stop")
    point = {name: _widened(value) for name, value in feeds.items()}
    point |= _initial_values(wide, [name for name in sources if name not in point])
    return _Comparison(graph, names, sources, point, np.random.default_rng(seed)).report(directions, tolerance)


class _Comparison:
    """A module with inputs for all parameters and cotangents, at one point."""

    def __init__(
        self, graph: Module, names: list[str], sources: list[str], point: dict[str, Any], rng: np.random.Generator
    ) -> None:
        self.block = graph.main.block
        self.evaluator = Evaluator(graph.functions)
        self.names, self.sources, self.point, self.rng = names, sources, point, rng
        declared = [output.name for output in self.block.outputs]
        returned = self.block.returned
        by_name = {value.name: value for op in self.block for value in op.results}
        self.outputs = [returned[declared.index(name)] if name in declared else by_name[name] for name in names]
        self.grads = list(returned[len(returned) - len(sources) :])
        values = self.run(self.outputs)
        self.weights = [rng.standard_normal(np.shape(value)) for value in values]

    def run(self, wanted: Sequence[Value], **changed: Any) -> list[Any]:
        given = {**self.point, **changed}
        arguments = [given.get(argument.name or "") for argument in self.block.arguments]
        return self.evaluator.run(self.block, arguments, wanted)

    def value(self, name: str, array: np.ndarray) -> float:
        values = self.run(self.outputs, **{name: array})
        return float(sum(np.sum(weight * value) for weight, value in zip(self.weights, values, strict=True)))

    def report(self, directions: int, tolerance: float) -> GradientReport:
        cotangents = self.block.arguments[-len(self.names) :]
        weights = {str(argument.name): weight for argument, weight in zip(cotangents, self.weights, strict=True)}
        found = self.run(self.grads, **weights)
        report = GradientReport(tolerance)
        for name, grad in zip(self.sources, found, strict=True):
            for _ in range(directions):
                report.checks.append(self._direction(name, np.asarray(grad)))
        return report

    def _direction(self, name: str, grad: np.ndarray) -> DirectionCheck:
        at = np.asarray(self.point[name])
        direction = self.rng.standard_normal(at.shape)
        norm = float(np.linalg.norm(direction.reshape(-1))) or 1.0
        direction = np.asarray(direction / norm * max(1.0, np.sqrt(at.size) ** 0.5))
        numeric, left, right = self._numeric(name, at, direction)
        analytic = float(np.sum(grad * direction))
        size = max(abs(left), abs(right), float(np.linalg.norm((grad * direction).reshape(-1))))
        kink = abs(right - left) > KINK * max(size, 1.0)
        scale = max(size, 1e-3 * max(1.0, abs(self.value(name, at))))
        return DirectionCheck(name, at.shape, analytic, numeric, scale, kink)

    def _numeric(self, name: str, at: np.ndarray, direction: np.ndarray) -> tuple[float, float, float]:
        """The difference with the step that is right: where the next one says nearly the same, so that it is not too
        wide for what is near, nor lost in noise."""
        estimates = [self._difference(name, at, direction, step) for step in STEPS[:2]]
        best = (abs(estimates[0][0] - estimates[1][0]), 1)
        for step in STEPS[2:]:
            if best[0] <= ENOUGH * abs(estimates[-1][0]):
                break
            estimates.append(self._difference(name, at, direction, step))
            distance = abs(estimates[-1][0] - estimates[-2][0])
            best = min(best, (distance, len(estimates) - 1)) if np.isfinite(best[0]) else (distance, len(estimates) - 1)
        return estimates[best[1]]

    def _difference(self, name: str, at: np.ndarray, direction: np.ndarray, step: float) -> tuple[float, float, float]:
        """The derivative along a direction, and those from the left and from the right."""
        near = {k: self.value(name, at + k * step * direction) for k in (-2, -1, 0, 1, 2)}
        central = (8 * (near[1] - near[-1]) - (near[2] - near[-2])) / (12 * step)
        left = (3 * near[0] - 4 * near[-1] + near[-2]) / (2 * step)
        right = (-3 * near[0] + 4 * near[1] - near[2]) / (2 * step)
        return central, left, right


# ---- a module in float64 ---------------------------------------------------------------------------------------------


def as_float64(module: Module) -> Module:
    """A copy that computes in float64 what `module` computes in narrower floats: inputs, constants, casts."""
    copy = clone_module(module)
    _expand(copy)
    context = InferenceContext(copy.symbols)
    for function in copy.all_functions():
        function.defaults = {argument: _wide_data(data) for argument, data in function.defaults.items()}
        _widen_block(function.block, context)
    return copy


def _hold_draws(module: Module, seed: int) -> None:
    """Let each run draw the same: differences between two draws say nothing. Raises UsageError where that cannot be."""
    drawing = [
        Diagnostic("gradient/random", f"{op.name} draws other numbers in each run", op.location)
        for op in module.walk()
        if Trait.RANDOM in op.definition.traits and op.name != "dropout" and op.attributes.get("seed") is None
    ]
    if drawing:
        raise UsageError.collect(drawing)
    dropouts = training_dropouts(module)
    if dropouts:
        b = StepBuilder(module)
        b.before(module.main.block.first)
        replace_dropouts(b, dropouts, b.const(np.array(0, np.int64)), seed)


def _expand(module: Module) -> None:
    """Put their parts in the place of operators that are only defined by them: these may convert to f32 on the way."""
    rewriter = Rewriter(module.symbols)
    for op in list(module.main.walk()):
        if op.parent is None or not _only_has_parts(op):
            continue
        values = op.definition.decompose(op, rewriter.before(op))
        if values is not None:
            pairs = zip(values, op.results, strict=False)
            rewriter.replace(op, [value if result.use_count else None for value, result in pairs])


def _only_has_parts(op: Operation) -> bool:
    definition = op.definition
    if op.regions or type(definition).evaluate is not OpDefinition.evaluate or find_rule(definition) is not None:
        return False
    return not isinstance(definition, OpaqueDefinition) and find_parts(definition) is None


def _widen_block(block: Block, context: InferenceContext) -> None:
    for argument in block.arguments:
        argument.type = _wide_type(argument.type)
    as_they_are: set[Operation] = set()
    for op in reversed(list(block)):
        if _has_to_be_f32(op, as_they_are):
            as_they_are.add(op)
    for op in block:
        for region in op.regions.values():
            _widen_block(region.block, context)
        if op not in as_they_are:
            _widen(op, context)
    for output in block.outputs:
        output.type = None if output.type is None else _wide_type(output.type)


def _has_to_be_f32(op: Operation, others: set[Operation]) -> bool:
    """Whether all users of what `op` makes take no other type, as Resize its scales, or are among `others`."""
    uses = [use for value in op.results for use in value.uses]
    return bool(uses) and all(use.user in others or _takes_f32(use.user, use.position) for use in uses)


def _takes_f32(op: Operation, position: int) -> bool:
    schema = op.definition.schema
    inputs = () if schema is None else schema.onnx.inputs
    return position < len(inputs) and inputs[position].type_str == "tensor(float)"


def _widen(op: Operation, context: InferenceContext) -> None:
    for name, value in list(op.attributes.items()):
        if isinstance(value, TensorData):
            op.attributes[name] = _wide_data(value)
        elif name in ("to", "dtype", "stash_type", "softmax_precision", "output_datatype") and isinstance(value, int):
            op.attributes[name] = _wide_code(value)
    if "stash_type" in op.definition.attribute_specs:
        op.attributes["stash_type"] = dtypes.f64.onnx_code
    if op.name == "constant_of_shape" and "value" not in op.attributes:
        op.attributes["value"] = ArrayData(np.zeros(1, np.float64))
    if op.is_terminator:
        return
    try:
        inferred = infer_types(op, context)
    except TypeInferenceError:
        inferred = [_wide_type(result.type) for result in op.results]
    for result, type in zip(op.results, inferred, strict=True):
        result.type = _wide_type(result.type) if type is not _wide_type(type) else type


def _wide(dtype: DType) -> DType:
    return dtypes.f64 if dtype.name in NARROW else dtype


def _wide_code(code: int) -> int:
    dtype = dtypes.BY_ONNX_CODE.get(code)
    return code if dtype is None else _wide(dtype).onnx_code


def _wide_type(type: Type) -> Type:
    if isinstance(type, TensorType):
        return type.with_dtype(_wide(type.dtype))
    if isinstance(type, SequenceType):
        return sequence(_wide_type(type.element))
    return optional(_wide_type(type.element)) if isinstance(type, OptionalType) else type


def _wide_data(data: TensorData) -> TensorData:
    return ArrayData(data.numpy().astype(np.float64)) if data.dtype.name in NARROW else data


def _widened(value: Any) -> Any:
    array = np.asarray(value) if not isinstance(value, list | dict) else value
    if isinstance(array, np.ndarray) and array.dtype != object:
        return array.astype(np.float64) if dtypes.from_numpy(array.dtype).name in NARROW else array
    return array


# ---- parameters ------------------------------------------------------------------------------------------------------


def _is_wide(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype is dtypes.f64


def _outputs(module: Module) -> list[str]:
    block = module.main.block
    pairs = zip(block.outputs, block.returned, strict=True)
    return [str(output.name) for output, value in pairs if _is_wide(value)]


def _initializers(module: Module) -> dict[str, Operation]:
    return {
        op.result.name: op for op in module.main.block if op.name == "const" and op.result.name and _is_wide(op.result)
    }


def _parameters(module: Module) -> list[str]:
    inputs = [str(argument.name) for argument in module.main.inputs if _is_wide(argument)]
    return [*inputs, *_initializers(module)]


def _initial_values(module: Module, names: Sequence[str]) -> dict[str, Any]:
    constants = {name: op.attributes["value"] for name, op in _initializers(module).items()}
    constants |= {str(argument.name): data for argument, data in module.main.defaults.items()}
    return {name: constants[name].numpy() for name in names if name in constants}


def _with_inputs(module: Module, names: Sequence[str]) -> Module:
    """A copy in which initializers among `names` are inputs."""
    copy = clone_module(module)
    found = _initializers(copy)
    for name in names:
        if name not in found:
            continue
        old = found[name].result
        argument = copy.main.block._add_argument(old.type, name)
        old.name = None
        for use in old.uses:
            use.user._set_operand(use.position, argument)
        found[name]._erase()
    return copy
