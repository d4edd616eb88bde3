"""Which tensors of a model are trained, and how they become inputs of its training step."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph import dtypes
from ...graph.clone import clone_module
from ...graph.core import Operation, Value
from ...graph.data import ArrayData, TensorData
from ...graph.diagnostics import Diagnostic, DiagnosticLog, UsageError, listed
from ...graph.infer import InferenceContext
from ...graph.types import TensorType
from .derivation import leaves
from .dropout import in_training

if TYPE_CHECKING:
    from ...graph.model_builder import Tensor
    from ...graph.module import Module
    from .step_builder import StepBuilder

# Masks hold -inf, the least float, or a number such as -10000; no weight is as large.
MASK = 1e4
NARROW = (dtypes.f16, dtypes.bf16)
# Where operators have weights and biases, and whose results biases are added to.
WEIGHTS = {
    "gemm": (1, 2), "matmul": (0, 1), "conv": (1, 2), "conv_transpose": (1, 2), "batch_normalization": (1, 2),
    "instance_normalization": (1, 2), "group_normalization": (1, 2), "layer_normalization": (1, 2),
    "rms_normalization": (1,), "prelu": (1,), "rnn": (1, 2, 3), "gru": (1, 2, 3), "lstm": (1, 2, 3),
}  # fmt: skip
PRODUCTS = ("matmul", "gemm", "conv", "conv_transpose", "einsum")


@dataclass
class Trainable:
    """A parameter that became an input of the step: the input, its first value, and what the model reads."""

    name: str
    state: Tensor
    initial: TensorData
    read: Value  # `state`, or its cast to the model's element type
    original: TensorData
    was_input: bool

    def undo(self, b: StepBuilder) -> None:
        """Make it a constant of the model again."""
        if self.was_input:
            return
        block, argument = b.block, self.state.value
        b.before(block.first)
        constant = b.const(self.original).value
        b.before(None)
        for use in self.read.uses:
            use.user._set_operand(use.position, constant)
        if self.read is not argument and self.read.producer is not None:
            self.read.producer._erase()
        del b.defaults[argument]
        block._remove_argument(argument.index)
        constant.name = self.name


def initial_values(module: Module) -> dict[str, Value]:
    """What holds a value under a name: initializers, constants with a name, and inputs with a default."""
    found: dict[str, Value] = {str(argument.name): argument for argument in module.main.defaults}
    for op in module.main.block:
        if op.name == "const" and op.result.name and "from_attribute" not in op.metadata:
            found[op.result.name] = op.result
    return found


def data_of(module: Module, value: Value) -> TensorData:
    producer = value.producer
    data = module.main.defaults[value] if producer is None else producer.attributes["value"]
    assert isinstance(data, TensorData)
    return data


def with_values(module: Module, values: Mapping[str, np.ndarray]) -> Module:
    """A copy of `module` in which initializers have the numbers that `values` gives under their names, converted to
    their element types; names that the module does not have are left aside."""
    copy = clone_module(module)
    for name, value in initial_values(copy).items():
        if name not in values:
            continue
        old = data_of(copy, value)
        if old.shape != np.shape(values[name]):
            raise UsageError("train/shape", f"{name!r} is {old.type}, its new value has shape {np.shape(values[name])}")
        new = ArrayData(np.asarray(values[name]).astype(old.dtype.numpy), old.dtype)
        if value.producer is None:
            copy.main.defaults[value] = new
        else:
            value.producer.attributes["value"] = new
    return copy


def chosen_parameters(module: Module, params: Any, log: DiagnosticLog | None = None) -> list[str]:
    """The names of the tensors to train: those in `params`, where `*` and `?` match as in file names; or by default all
    parameters of layers, and all other float initializers that are neither one number, but for biases and their kin,
    nor a mask nor statistics of a BatchNormalization. `log` is told of those that are left out.

    Raises UsageError, all findings at once, for names without a float value.
    """
    there = initial_values(module)
    if params is None:
        return _default_parameters(module, there, log)
    names: dict[str, None] = {}
    wrong = []
    for name in leaves(params):
        if name not in there and any(sign in name for sign in "*?["):
            matching = [each for each in _default_parameters(module, there) if fnmatchcase(each, name)]
            names.update(dict.fromkeys(matching))
            if not matching:
                hints = (f"the parameters are {listed(_default_parameters(module, there))}",)
                wrong.append(Diagnostic("train/unknown-parameter", f"no parameter matches {name!r}", notes=hints))
        elif name not in there:
            wrong.append(_unknown(module, name, there))
        elif not _is_float(there[name]):
            wrong.append(
                Diagnostic("train/not-float", f"{name!r} is {there[name].type}: only float tensors are trained")
            )
        else:
            names[name] = None
    if wrong:
        raise UsageError.collect(wrong)
    if not names:
        raise UsageError("train/no-parameter", "params names nothing to train", notes=["None is all of them"])
    return list(names)


def _unknown(module: Module, name: str, there: dict[str, Value]) -> Diagnostic:
    if any(argument.name == name for argument in module.main.inputs):
        message = f"{name!r} is an input without a value, and a parameter has to begin with one"
        return Diagnostic("train/unknown-parameter", message)
    near = difflib.get_close_matches(name, there, 3, 0.4)
    known = f"those of floats are {listed(each for each, value in there.items() if _is_float(value))}"
    hints = (f"did you mean {' or '.join(near)}?",) if near else (known,)
    return Diagnostic("train/unknown-parameter", f"there is no initializer {name!r}", notes=hints)


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.kind == "float"


def _default_parameters(module: Module, there: dict[str, Value], log: DiagnosticLog | None = None) -> list[str]:
    candidates = {name: value for name, value in there.items() if _may_be_trained(value)}
    # Some exporters write weights as Constant nodes, all of them; otherwise those hold numbers of the computation.
    named = {name: value for name, value in candidates.items() if not _is_node(value)} or candidates
    names = [name for name, value in named.items() if _looks_trained(data_of(module, value), value)] or list(named)
    left = [name for name in named if name not in names]
    if left and log is not None:
        hint = "params=[...] (--params) names those to train"
        log.remark("train/left-out", f"one number or a mask, so not trained: {listed(left)}", None, hint)
    if not names:
        hint = "name them: builder.const(array, name=...), or params=[...]"
        raise UsageError("train/no-parameter", "the model has no float initializer with a name", notes=[hint])
    return names


def _is_node(value: Value) -> bool:
    return value.producer is not None and "constant_node" in value.producer.metadata


def _is_parameter(value: Value) -> bool | None:
    """Whether a layer of `nn` trains it; None for what is no layer's."""
    return None if value.producer is None else value.producer.metadata.get("parameter")


def _may_be_trained(value: Value) -> bool:
    declared = _is_parameter(value)
    if declared is not None:
        return declared
    statistics = any(use.user.name == "batch_normalization" and use.position > 2 for use in value.uses)
    rank = value.type.rank if isinstance(value.type, TensorType) else None
    return _is_float(value) and bool(rank) and not statistics


def _looks_trained(data: TensorData, value: Value) -> bool:
    """Not one number, which is a factor of the computation unless an operator of layers has it as its weight or bias,
    and no mask: those have -inf, or numbers as large."""
    if _is_parameter(value):
        return True
    if (data.elements < 2 and not _is_of_layer(value)) or data.dtype.bits < 16:
        return False
    with np.errstate(all="ignore"):
        return bool(np.max(np.abs(data.numpy().astype(np.float32))) < MASK)


def _is_of_layer(value: Value) -> bool:
    """Whether `value` is the weight or the bias of an operator that has such, or is added to a product."""
    for use in value.uses:
        if use.position in WEIGHTS.get(use.user.name, ()):
            return True
        others = [each.producer for each in use.user.operand_values if each is not value]
        if use.user.name == "add" and any(other is not None and other.name in PRODUCTS for other in others):
            return True
    return False


def as_inputs(b: StepBuilder, module: Module, names: Sequence[str], master_weights: bool) -> list[Trainable]:
    """Make the parameters called `names` states of the step; those in f16 or bf16 are kept in f32 and cast when read,
    with `master_weights`."""
    there = initial_values(module)
    return [_as_input(b, module, name, there[name], master_weights) for name in names]


def _as_input(b: StepBuilder, module: Module, name: str, value: Value, master_weights: bool) -> Trainable:
    original = data_of(module, value)
    if value.is_argument:
        return Trainable(name, b.tensor(value), original, value, original, was_input=True)
    initial = original
    if original.dtype in NARROW and master_weights:
        initial = ArrayData(original.numpy().astype(np.float32))
    value.name = None
    state = b.state(name, initial)
    b.before(module.main.block.first)
    read = b.as_dtype(state, original.dtype).value
    b.before(None)
    for use in value.uses:
        use.user._set_operand(use.position, read)
    if value.producer is not None:
        value.producer._erase()
    return Trainable(name, state, initial, read, original, was_input=False)


def remark_frozen(module: Module, log: DiagnosticLog) -> None:
    """Tell of layers that are in the form for inference, so that training will treat them as they are."""
    context = InferenceContext(module.symbols)
    frozen: list[Operation] = []
    for op in module.walk():
        idle = op.name == "dropout" and in_training(op, context) is False
        if idle or (op.name == "batch_normalization" and not op.attr("training_mode")):
            frozen.append(op)
    if frozen:
        message = f"{len(frozen)} BatchNormalization and Dropout are in the form for inference and stay so"
        log.remark("train/inference-form", message, frozen[0].location, "tilewright.train.training_form changes that")
