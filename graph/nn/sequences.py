"""Layers over sequences [batch, length, width]: attention and recurrent networks."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..diagnostics import UsageError
from ..model_builder import Builder, Tensor
from .init import Constant, Initializer, Uniform, XavierUniform
from .layer import Layer, Parameter
from .layers import Linear


class MultiHeadAttention(Layer):
    """Scaled dot-product attention in `heads` heads of width / heads (Vaswani et al. 2017, section 3.2).

    Called on x, or on query, key and value; `causal` lets each place see itself and what is before. `mask` (bool,
    [length, key length] or broadcast to [batch, heads, length, key length]) is true where a place may look.
    """

    def __init__(
        self, width: int, heads: int, causal: bool = False, bias: bool = True, init: Initializer | None = None
    ) -> None:
        super().__init__()
        if width % heads:
            raise UsageError("nn/heads", f"a width of {width} does not split into {heads} heads")
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value, self.output = (
            Linear(width, width, bias, init or XavierUniform()) for _ in range(4)
        )

    def build(self, b: Builder, *tensors: Any) -> Tensor:
        query, key, value, mask = self._operands(tensors)
        parts = [self.query(query), self.key(key), self.value(value)]
        mixed = b.attention(
            *parts, *([] if mask is None else [mask]), q_num_heads=self.heads, kv_num_heads=self.heads,
            is_causal=int(self.causal), outputs=1,
        )  # fmt: skip
        result: Tensor = self.output(mixed)
        return result

    def _operands(self, tensors: tuple[Any, ...]) -> tuple[Any, Any, Any, Any]:
        if len(tensors) == 1:
            return tensors[0], tensors[0], tensors[0], None
        if len(tensors) == 3:
            return (*tensors, None)
        if len(tensors) != 4:
            raise UsageError("nn/attention", "attention is called on x, or on query, key, value and maybe a mask")
        return tensors[0], tensors[1], tensors[2], tensors[3]


class Recurrent(Layer):
    """Base: x [batch, length, inputs] to all hidden states [batch, length, directions * hidden].

    Weights as ONNX has them: input_weight [directions, gates * hidden, inputs], state_weight [directions,
    gates * hidden, hidden], bias [directions, 2 * gates * hidden].
    """

    operator: ClassVar[str] = ""
    gates: ClassVar[int] = 1
    options: ClassVar[dict[str, int]] = {}

    def __init__(self, inputs: int, hidden: int, bidirectional: bool = False) -> None:
        super().__init__()
        directions = 2 if bidirectional else 1
        self.hidden, self.bidirectional = hidden, bidirectional
        bound = float(1 / np.sqrt(hidden))
        even = Uniform(-bound, bound)
        self.input_weight = Parameter((directions, self.gates * hidden, inputs), even)
        self.state_weight = Parameter((directions, self.gates * hidden, hidden), even)
        self.bias = Parameter((directions, 2 * self.gates * hidden), Constant(0.0))

    def build(self, b: Builder, *tensors: Any) -> Tensor:
        (x,) = tensors
        weights = [self.tensor(b, each) for each in (self.input_weight, self.state_weight, self.bias)]
        states = b.create(
            self.operator, b.transpose(x, perm=[1, 0, 2]), *weights, outputs=1, hidden_size=self.hidden,
            direction="bidirectional" if self.bidirectional else "forward", **self.options,
        )  # fmt: skip
        together = b.transpose(states, perm=[2, 0, 1, 3])
        result: Tensor = b.reshape(together, np.array([0, 0, -1], np.int64))
        return result


class RNN(Recurrent):
    """h' = tanh(x W + h R + bias)."""

    operator = "rnn"


class GRU(Recurrent):
    """Cho et al. 2014; the reset gate is applied after the product, as PyTorch does."""

    operator = "gru"
    gates = 3
    options: ClassVar[dict[str, int]] = {"linear_before_reset": 1}


class LSTM(Recurrent):
    """Hochreiter and Schmidhuber 1997, with a forget gate."""

    operator = "lstm"
    gates = 4
