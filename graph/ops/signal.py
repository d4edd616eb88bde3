"""The short-time Fourier transform. DFT is what `onnx` says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..diagnostics import ExecutionError
from ..dims import Dim, ceildiv, dim_max
from ..opdef import op
from .common import TensorOp, error, operand_elements, shape_of

if TYPE_CHECKING:
    from ..core import Operation
    from ..infer import InferenceContext


@op("STFT")
class Stft(TensorOp):
    """Frames of a signal, one every `frame_step` samples, each weighted by a window and transformed.

    signal: [batch, samples, 1], or 2 for complex numbers. PyTorch's exporters leave the 1 out, and ONNX Runtime takes
    that, so [batch, samples] is taken here, too. Result: [batch, frames, bins, 2]. ONNX operator specification, STFT.
    """

    def result_shape(self, op: Operation, context: InferenceContext) -> Sequence[Dim] | None:
        shape, window = shape_of(op, 0), shape_of(op, 2)
        if shape is None:
            return None
        if len(shape) not in (2, 3):
            raise error("shape/rank", f"stft takes a signal of [batch, samples, 1 or 2], not of rank {len(shape)}")
        step, size = self._number(op, 1, context), self._number(op, 3, context)
        if size is None and op.input(3) is None and window:
            size = window[0]
        if size is None:
            return [shape[0], context.fresh(), context.fresh(), 2]
        bins = size // 2 + 1 if op.attr("onesided") else size
        if not isinstance(step, int) or step < 1:
            return [shape[0], context.fresh(), bins, 2]
        return [shape[0], dim_max(ceildiv(shape[1] - size + 1, step), 0), bins, 2]

    def _number(self, op: Operation, index: int, context: InferenceContext) -> Dim | None:
        elements = operand_elements(op, index, context)
        found: Dim | None = None if elements is None or elements.size != 1 else elements.reshape(-1)[0]
        return found

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        signal, step, window, length = (*operands, None, None)[:4]
        x = signal[..., None] if signal.ndim == 2 else signal
        size = x.shape[1] if length is None and window is None else len(window) if length is None else int(length)
        if window is not None and len(window) != size:
            return super().evaluate(op, x, *operands[1:])
        if int(step) < 1 or not 0 < size <= x.shape[1]:
            text = f"frames of {size} samples, {int(step)} apart, of a signal of {x.shape[1]}: there are none"
            raise ExecutionError("run/stft", text)
        numbers = x[..., 0].astype(np.float64) + (1j * x[..., 1] if x.shape[2] == 2 else 0)
        frames = np.lib.stride_tricks.sliding_window_view(numbers, size, axis=1)[:, :: int(step)]
        result = np.fft.fft(frames if window is None else frames * np.asarray(window, np.float64))
        result = result[..., : size // 2 + 1] if op.attr("onesided") else result
        return np.stack([result.real, result.imag], -1).astype(signal.dtype)
