"""What `gradient`, `vjp`, `jvp` and `hvp` share: names, seeds, the sweeps, and new inputs and outputs of a module."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph.core import BlockOutput, Value
from ...graph.diagnostics import Diagnostic, DiagnosticLog, UsageError, listed
from ...graph.gradients.sweep import Findings, Stops, Sweep, is_differentiable
from ...graph.types import TensorType

if TYPE_CHECKING:
    from ...graph.core import Block
    from ...graph.module import Module

# What a backward graph needs: ScatterND and ScatterElements with a reduction (16), Reduce with axes as operand (18).
LEAST_OPSET = 18


class GradientError(UsageError):
    """The derivative that was asked for cannot be built; every reason is listed."""


class Derivation:
    """Adjoints built at the end of a module's main graph, in place.

    Raises GradientError (all findings at once) from `adjoints`, and UsageError for names that do not exist.
    """

    def __init__(self, module: Module, stops: Stops = "list", log: DiagnosticLog | None = None) -> None:
        if stops not in ("stop", "list", "error"):
            raise UsageError("gradient/stops", f"stops must be stop, list or error, not {stops!r}")
        self.module = module
        self.stops = stops
        self.log = log or DiagnosticLog()
        self.sweeps: list[Sweep] = []
        self.reasons: list[str] = []

    @property
    def block(self) -> Block:
        return self.module.main.block

    # ---- names ---------------------------------------------------------------------------------------------------

    def tensor(self, name: str) -> Value:
        """The value called `name`: an output, an input, an initializer, or any other tensor of the main graph."""
        for output, value in zip(self.block.outputs, self.block.returned, strict=True):
            if output.name == name:
                return value
        tensors = {value.name: value for value in self._values() if value.name}
        if name in tensors:
            return tensors[name]
        near = difflib.get_close_matches(name, tensors, 3)
        hints = [f"did you mean {' or '.join(near)}?"] if near else self._known_names()
        raise UsageError("gradient/unknown-tensor", f"there is no tensor {name!r} in the main graph", notes=hints)

    def _known_names(self) -> list[str]:
        """What can be named, for a message: outputs, then inputs and initializers, which are most often meant."""
        constants = [op.result.name for op in self.block if op.name == "const" and op.result.name]
        inputs = [argument.name for argument in self.block.arguments if argument.name]
        return [
            f"the outputs are {listed(str(output.name) for output in self.block.outputs)}",
            f"inputs and initializers are {listed([*inputs, *constants])}",
            "tensors inside of subgraphs cannot be chosen",
        ]

    def _values(self) -> Iterable[Value]:
        yield from self.block.arguments
        for op in self.block:
            yield from op.results

    def variables(self, names: Sequence[str]) -> list[Value]:
        """The tensors to differentiate with respect to. Raises GradientError for one that is no float tensor."""
        if not names:
            raise UsageError("gradient/wrt", "no tensor is named to differentiate with respect to")
        found = [self.tensor(name) for name in names]
        wrong = [
            Diagnostic("gradient/not-float", f"{name!r} is {value.type}: only float tensors have derivatives")
            for name, value in zip(names, found, strict=True)
            if not isinstance(value.type, TensorType) or not is_differentiable(value.type)
        ]
        if len(set(found)) < len(found):
            wrong.append(Diagnostic("gradient/duplicate", "a tensor is named twice"))
        if wrong:
            raise GradientError.collect(wrong)
        return found

    def loss(self, name: str) -> Value:
        """The scalar called `name`. Raises GradientError if it is not one."""
        value = self.tensor(name)
        type = value.type
        if not isinstance(type, TensorType) or not is_differentiable(type):
            raise GradientError("gradient/not-float", f"{name!r} is {type}: only float tensors have derivatives")
        if type.shape is None or any(dim != 1 for dim in type.shape):
            raise GradientError(
                "gradient/not-scalar",
                f"{name!r} is {type}, and a gradient is of a scalar",
                notes=["sum it up, or use tilewright.vjp, which takes a weight for each element"],
            )
        return value

    # ---- building ------------------------------------------------------------------------------------------------

    def sweep(self) -> Sweep:
        made = Sweep(self.block, self.module.symbols, Findings(), before=self.block.terminator)
        self.sweeps.append(made)
        return made

    def ones(self, value: Value) -> Value:
        """The seed of a scalar."""
        assert isinstance(value.type, TensorType)
        shape = (1,) * (value.type.rank or 0)
        return self.sweep().builder.const(np.ones(shape, value.type.dtype.numpy))

    def adjoints(self, seeds: Mapping[Value, Value], wrt: Sequence[Value]) -> list[Value | None]:
        """The adjoints of `wrt` if those of the values in `seeds` are what it says; None where nothing depends."""
        sweep = self.sweep()
        ops = [op for op in self.block if not op.is_terminator]
        found = sweep.differentiate(ops, seeds, wrt)
        stops = sweep.findings.stops
        self.reasons = [f"the path ends at {op.location}: {message}" for op, message in stops.items()]
        if self.stops == "error":
            for op, message in stops.items():
                sweep.findings.errors.append(Diagnostic("gradient/stop", message, op.location))
        elif self.stops == "list":
            for op, message in stops.items():
                self.log.remark("gradient/stop", message, op.location)
        if sweep.findings.errors:
            raise GradientError.collect(sweep.findings.errors)
        return found

    def connected(self, found: Sequence[Value | None], names: Sequence[str], of: str) -> list[Value]:
        """`found` without gaps. Raises GradientError for each that is missing."""
        missing = [
            Diagnostic("gradient/unreachable", f"{of} does not depend on {name!r}", notes=tuple(self.reasons[:5]))
            for name, value in zip(names, found, strict=True)
            if value is None
        ]
        if missing:
            raise GradientError.collect(missing)
        return [value for value in found if value is not None]

    def or_zeros(self, found: Sequence[Value | None], like: Sequence[Value]) -> list[Value]:
        builder = self.sweep().builder
        return [builder.zeros_like(x) if value is None else value for value, x in zip(found, like, strict=True)]

    # ---- interface -----------------------------------------------------------------------------------------------

    def add_input(self, name: str, like: Value) -> Value:
        """A further input of the type of `like`."""
        taken = {value.name for value in self._values()} | {output.name for output in self.block.outputs}
        argument = self.block._add_argument(like.type, _unused(name, taken))
        order = self.block.metadata.get("input_order")
        if order is not None:
            order.append(argument.name)
        return argument

    def finish(self, outputs: Sequence[tuple[str, Value]]) -> None:
        """Add outputs, drop what was built for nothing, and raise the opset to what a backward graph needs."""
        taken: set[str | None] = {output.name for output in self.block.outputs}
        taken |= {value.name for value in self._values()}
        terminator = self.block.terminator
        terminator._set_operands([*terminator.operands, *(value for _, value in outputs)])
        for name, value in outputs:
            unused = _unused(name, taken)
            taken.add(unused)
            self.block.outputs.append(BlockOutput(unused, value.type))
        for sweep in reversed(self.sweeps):
            sweep.erase_dead()
        opsets = self.module.opsets
        if opsets.get("", LEAST_OPSET) < LEAST_OPSET:
            opsets[""] = LEAST_OPSET


def _unused(name: str, taken: Iterable[Any]) -> str:
    known, candidate, number = set(taken), name, 1
    while candidate in known:
        number += 1
        candidate = f"{name}_{number}"
    return candidate


def leaves(names: Any) -> list[str]:
    """The names in a nesting of dicts, lists and tuples, in order."""
    if isinstance(names, str):
        return [names]
    items = names.values() if isinstance(names, Mapping) else names
    return [leaf for item in items for leaf in leaves(item)]
