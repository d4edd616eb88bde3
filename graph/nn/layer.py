"""`Layer`: parameters under names, other layers inside, and a method that builds its part of a graph.

class Block(nn.Layer):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 64)

    def build(self, b, x):
        return x + self.second(b.relu(self.first(x)))

model = Block().to_model(x=f32["n", 64])         # a Module; parameters are called first.weight, first.bias, ...
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from ..builder import OpBuilder
from ..data import ArrayData
from ..diagnostics import UsageError
from ..model_builder import Builder, Tensor
from ..module import Module
from ..types import Type
from .init import Initializer

Self = TypeVar("Self", bound="Layer")


class Parameter:
    """A tensor that a layer owns: `value` is an f32 array of shape `shape`, drawn when it is first asked for.

    `trained` is False for what is kept but not trained, such as running statistics.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        initializer: Initializer,
        fan_in: int = 1,
        fan_out: int = 1,
        *,
        trained: bool = True,
    ) -> None:
        self.shape, self.initializer, self.trained = shape, initializer, trained
        self.fan_in, self.fan_out = fan_in, fan_out
        self.value: np.ndarray | None = None

    def __repr__(self) -> str:
        return f"<Parameter f32{list(self.shape)}>"

    def draw(self, random: np.random.Generator) -> None:
        self.value = self.initializer.draw(self.shape, self.fan_in, self.fan_out, random)


class _Built:
    """What layers have put into one model so far."""

    def __init__(self) -> None:
        self.names: dict[Parameter, str] = {}
        self.tensors: dict[Parameter, Tensor] = {}


_built: weakref.WeakKeyDictionary[Builder, _Built] = weakref.WeakKeyDictionary()


class Layer:
    """Base of all layers. A subclass sets Parameters and Layers as attributes, or adds them with `add`, and has
    `build(b, *tensors)`. Calling a layer on tensors builds it into their model.

    `training` chooses the form of BatchNorm and Dropout that is built; `train()` sets it for all layers inside.
    """

    training = False

    def __init__(self) -> None:
        self._parts: dict[str, Parameter | Layer] = {}

    def __repr__(self) -> str:
        """The parameters and, line by line, the layers inside."""
        parts = self.__dict__.get("_parts", {})
        owned = ", ".join(f"{name} {list(part.shape)}" for name, part in parts.items() if isinstance(part, Parameter))
        inner = [f"{name}: {part!r}" for name, part in parts.items() if isinstance(part, Layer)]
        lines = "\n".join(inner).replace("\n", "\n  ")
        return f"{type(self).__name__}({owned}" + (f"\n  {lines}\n)" if inner else ")")

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter | Layer):
            self.add(name, value)
        super().__setattr__(name, value)

    def add(self, name: str, part: Parameter | Layer) -> None:
        """Own `part` under `name`, without making it an attribute."""
        if "_parts" not in self.__dict__:
            raise UsageError("nn/layer", f"{type(self).__name__}.__init__ must call super().__init__() first")
        self._parts[name] = part

    def build(self, b: Builder, *tensors: Any) -> Any:
        raise NotImplementedError

    def __call__(self, *tensors: Any) -> Any:
        b = next((tensor._builder for tensor in tensors if isinstance(tensor, Tensor)), None)
        if b is None:
            raise UsageError("nn/call", f"{type(self).__name__} is called on tensors of a Builder")
        self._name_parameters(_built.setdefault(b, _Built()))
        return self.build(b, *tensors)

    def to_model(self, name: str = "main", outputs: tuple[str, ...] = ("output",), **inputs: Type) -> Module:
        """A model of this layer alone: its inputs by name and type, its results under the names in `outputs`."""
        b = Builder(name)
        results = self(*(b.input(each, type) for each, type in inputs.items()))
        results = results if isinstance(results, tuple) else (results,)
        if len(results) != len(outputs):
            raise UsageError("nn/outputs", f"the layer has {len(results)} results, {len(outputs)} outputs are named")
        for result, output in zip(results, outputs, strict=True):
            b.output(result, output)
        return b.build()

    # ---- parameters ----------------------------------------------------------------------------------------------

    def named(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """All Parameters of this layer and those inside, each once, with their names (`2.weight`)."""
        seen: set[Parameter] = set()
        for name, parameter in self._walk(prefix):
            if parameter not in seen:
                seen.add(parameter)
                yield name, parameter

    def _walk(self, prefix: str) -> Iterator[tuple[str, Parameter]]:
        for name, part in self._parts.items():
            if isinstance(part, Parameter):
                yield prefix + name, part
            else:
                yield from part._walk(f"{prefix}{name}.")

    def layers(self) -> Iterator[Layer]:
        """This layer and all inside."""
        yield self
        for part in self._parts.values():
            if isinstance(part, Layer):
                yield from part.layers()

    def initialize(self: Self, seed: int = 0) -> Self:
        """Draw all parameters anew, in order."""
        random = np.random.default_rng(seed)
        for _, parameter in self.named():
            parameter.draw(random)
        return self

    def parameters(self, trained: bool = True) -> dict[str, np.ndarray]:
        """The numbers of each parameter that is trained (all with `trained=False`), by name. Those not drawn yet are
        drawn as by `initialize()`."""
        if any(parameter.value is None for _, parameter in self.named()):
            self._draw_missing()
        named = {name: parameter for name, parameter in self.named() if parameter.trained or not trained}
        return {name: parameter.value for name, parameter in named.items() if parameter.value is not None}

    def load(self: Self, values: Mapping[str, np.ndarray]) -> Self:
        """Take numbers by name, such as a trainer's state; other names are left aside. Raises UsageError for a shape
        that does not fit."""
        for name, parameter in self.named():
            if name not in values:
                continue
            array = np.array(values[name], np.float32)  # a trainer goes on changing its own
            if array.shape != parameter.shape:
                raise UsageError("nn/shape", f"{name!r} has shape {parameter.shape}, its new value {array.shape}")
            parameter.value = array
        return self

    def _draw_missing(self) -> None:
        random = np.random.default_rng(0)
        for _, parameter in self.named():
            drawn = parameter.value
            parameter.draw(random)
            parameter.value = parameter.value if drawn is None else drawn

    def train(self: Self, mode: bool = True) -> Self:
        """Build BatchNorm and Dropout in training form from now on (or not)."""
        for layer in self.layers():
            layer.training = mode
        return self

    # ---- building ------------------------------------------------------------------------------------------------

    def _name_parameters(self, built: _Built) -> None:
        """The outermost layer that is called names the parameters of all inside."""
        if all(parameter in built.names for _, parameter in self.named()):
            return
        self.parameters(trained=False)
        taken = set(built.names.values())
        prefix, number = "", 1
        while any(name in taken for name, _ in self.named(prefix)):
            number += 1
            prefix = f"{type(self).__name__.lower()}_{number}."
        for name, parameter in self.named(prefix):
            built.names.setdefault(parameter, name)

    def tensor(self, b: Builder, parameter: Parameter) -> Tensor:
        """`parameter` in the model under construction: one constant, however often it is used."""
        built = _built.setdefault(b, _Built())
        if parameter not in built.tensors:
            assert parameter.value is not None
            # At the top of the model, so that a loop's body and what follows it can both use it.
            main = b._places[0]
            place = OpBuilder(main.block, main.symbols, main.before, b._here.location)
            data = ArrayData(parameter.value)
            op = place.create("const", (), {"value": data}, result_types=[data.type])
            op.result.name = built.names.get(parameter)
            op.metadata["parameter"] = parameter.trained
            built.tensors[parameter] = Tensor(op.result, b)
        return built.tensors[parameter]
