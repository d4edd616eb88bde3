"""A training step as one module: forward, loss, backward, update. Level onnx.

Parameters and the optimizer's state are inputs with defaults, and what the step makes of them are outputs called
`NAME_next`; so whoever runs the step feeds each `NAME_next` as `NAME` of the next call. Which tensors those are is
written in the module's metadata_props, where it stays when the step is saved (`Roles`).

    func @main(%x: f32[n, 4], %w: f32[4, 3], %target: i64[n], %step: i64[])
        -> (%loss: f32[], %y: f32[n, 3], %w_next: f32[4, 3], %step_next: i64[])
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...graph import dtypes
from ...graph.core import Value
from ...graph.diagnostics import DiagnosticLog, UsageError
from ...graph.location import NodeLocation
from ...graph.model_builder import Tensor
from ...graph.nn.losses import LOSSES, Loss
from ...graph.types import TensorType
from .derivation import Derivation
from .dropout import replace_dropouts, training_dropouts
from .gradient import _copied
from .optimizers import Moment, Optimizer, Parameter, by_name
from .parameters import Trainable, as_inputs, chosen_parameters, initial_values, remark_frozen
from .running_statistics import update_running_statistics
from .step_builder import StepBuilder

if TYPE_CHECKING:
    from ...graph.module import Module

# Of the parameters, in a remark.
LISTED = 20

# A loss: the builder and the model's outputs by name go in, one number comes out. It may add inputs, `b.input(...)`.
LossFunction: TypeAlias = Callable[[StepBuilder, dict[str, "Tensor"]], "Tensor"]


@dataclass(frozen=True)
class LossScale:
    """Multiply the loss before differentiating, so that small gradients do not vanish in f16, and divide gradients
    after (Micikevicius et al. 2017). Where a gradient is infinite or NaN the update is left out and the scale is
    multiplied by `backoff`; after `interval` updates without that, by `growth`. `growth=backoff=1` keeps it as it is.
    """

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000


@dataclass
class Roles:
    """Which inputs and outputs of a step are what."""

    loss: str
    parameters: list[str] = field(default_factory=list)
    state: dict[str, str] = field(default_factory=dict)  # input to output; parameters too
    outputs: list[str] = field(default_factory=list)  # those of the model
    # How many classes the integers of an input name, and which integer does not count, if there is one.
    classes: dict[str, tuple[int, int | None]] = field(default_factory=dict)

    KEY = "tilewright.train"

    def store(self, module: Module) -> None:
        facts: dict[str, Any] = {
            "loss": self.loss,
            "parameters": self.parameters,
            "state": self.state,
            "outputs": self.outputs,
        }
        if self.classes:
            facts["classes"] = self.classes
        properties = dict(module.metadata.get("metadata_props") or {})
        module.metadata["metadata_props"] = {**properties, self.KEY: json.dumps(facts)}

    @classmethod
    def of(cls, module: Module) -> Roles:
        """Raises UsageError for a module that is no training step."""
        text = (module.metadata.get("metadata_props") or {}).get(cls.KEY)
        if text is None:
            hint = "make one with tilewright.train.step(model, ...)"
            raise UsageError("train/no-step", "this module is not a training step", notes=[hint])
        return cls(**json.loads(text))


@dataclass(frozen=True)
class StepOptions:
    """How to train; see `tilewright.train.step`."""

    loss: str | Loss | LossFunction = "cross-entropy"
    optimizer: Optimizer | str = "adam"
    params: Any = None
    output: str | None = None
    target: str = "target"
    clip_value: float | None = None
    clip_norm: float | None = None
    accumulate: int = 1
    loss_scale: LossScale | float | None = None
    seed: int = 0
    bn_variance: str = "population"
    master_weights: bool = True
    stops: str = "stop"

    def __post_init__(self) -> None:
        if self.accumulate < 1 or int(self.accumulate) != self.accumulate:
            raise UsageError(
                "train/accumulate", f"accumulate is a number of calls of at least 1, not {self.accumulate}"
            )
        scale = self.loss_scale.initial if isinstance(self.loss_scale, LossScale) else self.loss_scale
        if scale is not None and not 0 < scale < math.inf:
            raise UsageError("train/loss-scale", f"a loss scale is a finite number above 0, not {scale}")
        if not isinstance(self.optimizer, str | Optimizer):
            hint = "train.Adam(1e-3), or its name, 'adam'"
            raise UsageError("train/optimizer", f"{self.optimizer!r} is no optimizer", notes=[hint])
        if not 0 <= self.seed < 2**63:
            raise UsageError("train/seed", f"a seed is an integer from 0 to 2^63 - 1, not {self.seed}")
        for name, number in (("clip_value", self.clip_value), ("clip_norm", self.clip_norm)):
            if number is not None and not number > 0:
                raise UsageError("train/clip", f"{name} is above 0, not {number}")


def build_step(module: Module, options: StepOptions, log: DiagnosticLog | None = None) -> Module:
    """The training step of `module`, which stays as it is.

    Raises UsageError for options that do not fit, GradientError for what cannot be differentiated.
    """
    copy = _copied(module)
    return _StepMaker(copy, options, log or DiagnosticLog()).make()


def build_evaluation(module: Module, options: StepOptions, names: Sequence[str]) -> Module:
    """A module that computes the loss, then the outputs of `module`; the initializers among `names` are inputs."""
    copy = _copied(module)
    maker = _StepMaker(copy, options, DiagnosticLog())
    there = initial_values(copy)
    as_inputs(maker.b, copy, [name for name in names if name in there], options.master_weights)
    maker.b.location = _location("loss")
    loss = maker.loss()
    maker.b.add_outputs([(maker.b.unused("loss"), loss.value)], [])
    return copy


class _StepMaker:
    """One step under construction, in place."""

    def __init__(self, module: Module, options: StepOptions, log: DiagnosticLog) -> None:
        self.module, self.options, self.log = module, options, log
        optimizer = options.optimizer
        self.optimizer = by_name(optimizer) if isinstance(optimizer, str) else optimizer
        scale = options.loss_scale
        self.scaling = LossScale(float(scale), 1, 1) if isinstance(scale, int | float) else scale
        self.b = StepBuilder(module)
        self.block = module.main.block
        self.classes: dict[str, tuple[int, int | None]] = {}
        self.model_outputs = [str(output.name) for output in module.main.block.outputs]

    def make(self) -> Module:
        options, b = self.options, self.b
        remark_frozen(self.module, self.log)
        names = chosen_parameters(self.module, options.params, self.log)
        dropouts = training_dropouts(self.module)
        trainables = as_inputs(b, self.module, names, options.master_weights)
        step = b.state(b.unused("step"), np.array(0, np.int64))
        b.location = _location("step")
        b.update(step, step + 1)
        if dropouts:
            replace_dropouts(b, dropouts, step, options.seed)
        update_running_statistics(b, self.module, options.bn_variance)
        b.location = _location("loss")
        loss = self.loss()
        at = Derivation(self.module, options.stops, self.log)  # type: ignore[arg-type]
        trainables, grads = self._gradients(at, loss, trainables)
        self._update(at, step, trainables, grads)
        first = [(self._loss_name(), loss.value)] if loss.value not in self._returned() else []
        roles = Roles(first[0][0] if first else self._name_of(loss), [each.name for each in trainables])
        roles.outputs = [name for name in self.model_outputs if name != roles.loss]
        self._remark_parameters(roles.parameters)
        roles.classes = self.classes
        roles.state = {name: output for name, (output, _) in b.updates.items()}
        b.add_outputs(first, [(output, self._apart(tensor)) for output, tensor in b.updates.values()])
        at.finish([])
        roles.store(self.module)
        return self.module

    def _remark_parameters(self, names: list[str]) -> None:
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        self.log.remark("train/parameters", f"{len(names)} tensors are trained: {', '.join(names[:LISTED])}{more}")

    def _apart(self, tensor: Tensor) -> Value:
        """An output that is an input as it came would keep its name."""
        value: Value = self.b.identity(tensor).value if tensor.value.is_argument else tensor.value
        return value

    # ---- loss ----------------------------------------------------------------------------------------------------

    def _returned(self) -> set[Value]:
        return set(self.module.main.block.returned)

    def _name_of(self, tensor: Tensor) -> str:
        block = self.module.main.block
        return str(block.outputs[list(block.returned).index(tensor.value)].name)

    def _loss_name(self) -> str:
        return self.b.unused("loss")

    def loss(self) -> Tensor:
        wanted, b, block = self.options.loss, self.b, self.module.main.block
        outputs = {str(o.name): b.tensor(value) for o, value in zip(block.outputs, block.returned, strict=True)}
        if isinstance(wanted, Loss):
            found = self._named_loss(wanted, outputs)
        elif callable(wanted):
            found = wanted(b, outputs)
            if not isinstance(found, Tensor):
                raise UsageError("train/loss", f"the function that makes the loss gave {found!r}, which is no tensor")
        elif wanted in LOSSES:
            found = self._named_loss(LOSSES[wanted](), outputs)
        elif wanted in outputs:
            found = outputs[wanted]
        else:
            hint = f"losses are {', '.join(LOSSES)}; outputs of the model are {', '.join(outputs)}"
            raise UsageError("train/unknown-loss", f"{wanted!r} is neither a loss nor an output", notes=[hint])
        type = found.type
        if not isinstance(type, TensorType) or type.dtype.kind != "float":
            raise UsageError("train/loss", f"a loss is one float, not {type}")
        if type.shape is None or any(dim != 1 for dim in type.shape):
            raise UsageError("train/loss", f"a loss is one number, not {type}", notes=['use reduction="mean"'])
        return found

    def _named_loss(self, loss: Loss, outputs: dict[str, Tensor]) -> Tensor:
        b, scores = self.b, self._scores(outputs)
        self._tell_of_scores(loss, scores, outputs)
        if scores.dtype in (dtypes.f16, dtypes.bf16):
            scores = b.cast(scores, to=dtypes.f32)
        shape, dtype = scores.shape, scores.dtype
        assert shape is not None
        assert dtype is not None
        type = dtype[shape]
        if loss.of_classes:
            if len(shape) < 2:
                raise UsageError("train/loss", f"scores are [n, classes, ...], not {scores.type}")
            axis = loss.class_axis % len(shape)
            type = dtypes.i64[(*shape[:axis], *shape[axis + 1 :])]
        name, target = self.options.target, self._target(type)
        if loss.of_classes and isinstance(count := shape[axis], int):
            self.classes[name] = count, loss.options.get("ignore_index")
        return loss(scores, target)

    def _target(self, type: TensorType) -> Tensor:
        """The input that the loss compares with: a further one, or one that the model has, as of an autoencoder."""
        b, name = self.b, self.options.target
        there = {str(argument.name): argument for argument in self.block.arguments if argument not in b.defaults}
        if name not in there:
            if b.unused(name) != name:
                raise UsageError("train/target", f"the name {name!r} is taken; give the target another (--target-name)")
            return b.input(name, type)
        found = there[name].type
        if not isinstance(found, TensorType) or found.dtype is not type.dtype or found.rank != type.rank:
            hint = "another name makes an input of its own"
            raise UsageError("train/target", f"the input {name!r} is {found}, a target is {type}", notes=[hint])
        return b.tensor(there[name])

    def _tell_of_scores(self, loss: Loss, scores: Tensor, outputs: dict[str, Tensor]) -> None:
        """What the loss looks at; a softmax or sigmoid before a loss that has one of its own is a mistake."""
        producer = scores.value.producer
        name = next((each for each, tensor in outputs.items() if tensor.value is scores.value), scores.value.name)
        self.log.remark("train/loss", f"the loss is {type(loss).function.__name__} of {name!r}")
        if producer is None or producer.name not in loss.not_after:
            return
        operand = producer.operand_values[0].name
        hint = f"output={operand!r} (--output-name {operand}) has the loss look at what goes into it" if operand else ""
        message = f"the loss takes {loss.takes}, and {name!r} comes from {producer.op_type}"
        self.log.warning("train/probabilities", message, producer.location, *filter(None, [hint, loss.instead]))

    def _scores(self, outputs: dict[str, Tensor]) -> Tensor:
        """The output that a named loss looks at."""
        if self.options.output is not None:
            return self.b.tensor(Derivation(self.module).tensor(self.options.output))
        for tensor in outputs.values():
            if tensor.dtype is not None and tensor.dtype.kind == "float" and tensor.shape is not None:
                return tensor
        raise UsageError("train/no-output", "the model has no float output of known rank to take a loss of")

    # ---- backward ------------------------------------------------------------------------------------------------

    def _gradients(
        self, at: Derivation, loss: Tensor, trainables: list[Trainable]
    ) -> tuple[list[Trainable], list[Value]]:
        """The gradients, still multiplied by the loss scale; parameters chosen by default that the loss does not
        depend on are left out."""
        values = [each.state.value for each in trainables]
        seed = at.ones(loss.value)
        self.b.location = _location("loss")
        if self.scaling is not None:
            self.scale = self.b.state(self.b.unused("loss_scale"), np.array(self.scaling.initial, np.float32))
            seed = self.b.mul(self.b.tensor(seed), self.b.like(self.scale, loss)).value
        found = at.adjoints({loss.value: seed}, values)
        if self.options.params is not None:
            return trainables, at.connected(found, [each.name for each in trainables], "the loss")
        pairs = [(each, grad) for each, grad in zip(trainables, found, strict=True) if grad is not None]
        if not pairs:
            raise UsageError("train/no-parameter", "the loss depends on no parameter", notes=at.reasons[:5])
        for each, grad in zip(trainables, found, strict=True):
            if grad is None:
                each.undo(self.b)
        return [each for each, _ in pairs], [grad for _, grad in pairs]

    # ---- update --------------------------------------------------------------------------------------------------

    def _update(self, at: Derivation, step: Tensor, trainables: list[Trainable], raw: list[Value]) -> None:
        b = self.b
        self._check_second_order()
        b.location = _location("gradients")
        self.widths = [self._width(each) for each in trainables]
        grads = [b.as_dtype(b.tensor(grad), dtype) for dtype, grad in zip(self.widths, raw, strict=True)]
        finite = None
        if self.scaling is not None:
            grads = [grad / b.like(self.scale, grad) for grad in grads]
        grads, ready, number = self._accumulated(step, trainables, grads)
        if self.scaling is not None:
            finite = self._all_finite(grads)
            updates = b.state(b.unused("updates"), np.array(0, np.int64))
            self._update_scale(finite, ready)
            ready = finite if ready is None else b.and_(ready, finite)
            b.update(updates, b.where(ready, updates + 1, updates))
            number = updates
        grads = self._clipped(grads)
        b.location = _location("schedule")
        done = b.cast(number, to=dtypes.f64)
        at_now = Moment(b, self.optimizer.rate(b, done), done + 1.0, at, raw)
        parameters = []
        for each, grad, dtype in zip(trainables, grads, self.widths, strict=True):
            zeros = np.zeros(each.initial.shape, dtype.numpy)
            slots = {slot: b.state(b.unused(f"{each.name}_{slot}"), zeros) for slot in self.optimizer.slot_names()}
            parameters.append(Parameter(each.name, b.as_dtype(each.state, dtype), grad, slots))
        b.location = _location(type(self.optimizer).__name__.lower())
        found = zip(trainables, parameters, self.optimizer.update(at_now, parameters), strict=True)
        for each, parameter, (value, new) in found:
            kept = b.as_dtype(value, _dtype(each.state))
            pairs = [(each.state, kept), *((parameter.slots[slot], tensor) for slot, tensor in new.items())]
            for old, changed in pairs:
                b.update(old, changed if ready is None else b.where(ready, changed, old))

    def _width(self, each: Trainable) -> dtypes.DType:
        """What an update is computed in: f16 holds neither squares of gradients nor what is added to their root."""
        dtype = _dtype(each.state)
        # Newton's products with the Hessian are of the parameters themselves.
        is_narrow = dtype in (dtypes.f16, dtypes.bf16) and self.optimizer.is_elementwise
        return dtypes.f32 if is_narrow else dtype

    def _check_second_order(self) -> None:
        from .newton import NewtonCG

        if isinstance(self.optimizer, NewtonCG) and (self.scaling is not None or self.options.accumulate > 1):
            raise UsageError("train/newton", "newton-cg goes with neither loss scaling nor gradient accumulation")

    def _accumulated(
        self, step: Tensor, trainables: list[Trainable], grads: list[Tensor]
    ) -> tuple[list[Tensor], Tensor | None, Tensor]:
        """Mean gradients of `accumulate` calls, whether this call ends with an update (None: each does), and how many
        updates were made before."""
        b, calls = self.b, self.options.accumulate
        if calls == 1:
            return grads, None, step
        ready = b.equal(b.mod(step, np.array(calls, np.int64)), np.array(calls - 1, np.int64))
        means = []
        for each, grad, dtype in zip(trainables, grads, self.widths, strict=True):
            zeros = np.zeros(each.initial.shape, dtype.numpy)
            state = b.state(b.unused(f"{each.name}_accumulated"), zeros)
            total = state + grad
            b.update(state, b.where(ready, b.like(0.0, total), total))
            means.append(total / float(calls))
        return means, ready, b.div(step, np.array(calls, np.int64))

    def _all_finite(self, grads: list[Tensor]) -> Tensor:
        b, total = self.b, None
        for grad in grads:
            size = b.as_dtype(b.reduce_l1(grad, keepdims=0), dtypes.f32)
            total = size if total is None else total + size
        # A comparison with NaN is false.
        found: Tensor = b.less_or_equal(total, np.finfo(np.float32).max)
        return found

    def _update_scale(self, finite: Tensor, ready: Tensor | None) -> None:
        b, scaling = self.b, self.scaling
        assert scaling is not None
        count = b.state(b.unused("finite_updates"), np.array(0, np.int64))
        grows = b.equal(count, np.array(scaling.interval - 1, np.int64))
        zero = b.const(np.array(0, np.int64))
        grown = b.where(grows, self.scale * scaling.growth, self.scale)
        scale = b.where(finite, grown, self.scale * scaling.backoff)
        counted = b.where(finite, b.where(grows, zero, count + 1), zero)
        b.update(self.scale, scale if ready is None else b.where(ready, scale, self.scale))
        b.update(count, counted if ready is None else b.where(ready, counted, count))

    def _clipped(self, grads: list[Tensor]) -> list[Tensor]:
        b, options = self.b, self.options
        if options.clip_value is not None:
            limit = options.clip_value
            grads = [b.clip(grad, b.like(-limit, grad), b.like(limit, grad)) for grad in grads]
        if options.clip_norm is None:
            return grads
        norm = b.sqrt(b.sum_of_squares(grads))
        factor = b.min(b.like(options.clip_norm, norm) / (norm + 1e-6), b.like(1.0, norm))
        return [grad * b.like(factor, grad) for grad in grads]


def _dtype(tensor: Tensor) -> dtypes.DType:
    assert tensor.dtype is not None
    return tensor.dtype


def _location(what: str) -> NodeLocation:
    return NodeLocation(f"/train/{what}", 0)
