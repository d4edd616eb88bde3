"""Bodies of control flow, which PyTorch runs as Python does."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import case


def _branches(b: Any, x: Any, w: Any, limit: float) -> Any:
    condition = b.greater(b.reduce_sum(x, keepdims=0), np.float32(limit))
    return b.if_(condition, lambda: (x * x * w, b.exp(x)), lambda: (b.sin(w), b.neg(x)))


case("if, then", lambda b, x, w: list(_branches(b, x, w, -100.0)), lambda t, x, w: [x * x * w, x.exp()], x=(3,), w=(3,))
case("if, else", lambda b, x, w: list(_branches(b, x, w, 100.0)), lambda t, x, w: [w.sin(), -x], x=(3,), w=(3,))


def _loop(b: Any, x: Any, w: Any) -> Any:
    def body(i: Any, c: Any, s: Any) -> Any:
        t = b.tanh(b.matmul(s, w) + x)
        return c, t, b.mul(t, s)

    return list(b.loop(4, [x], body))


def _unrolled(t: Any, x: Any, w: Any) -> Any:
    s, seen = x, []
    for _ in range(4):
        new = t.tanh(s @ w + x)
        seen.append(new * s)
        s = new
    return [s, t.stack(seen)]


case("loop", _loop, _unrolled, x=(2, 3), w=(3, 3))


def _until(b: Any, x: Any) -> Any:
    def body(i: Any, c: Any, s: Any) -> Any:
        t = s * np.float32(1.5) + b.sin(x)
        return b.less(b.reduce_sum(b.abs(t), keepdims=0), np.float32(20.0)), t

    return b.loop(50, [x], body, True)


def _unrolled_until(t: Any, x: Any) -> Any:
    s = x * 1.5 + t.sin(x)
    while s.abs().sum() < 20:
        s = s * 1.5 + t.sin(x)
    return s


case("loop until a condition", _until, _unrolled_until, x=(3,))


def _nested(b: Any, x: Any, w: Any) -> Any:
    def outer(i: Any, c: Any, s: Any) -> Any:
        return c, b.loop(2, [s + x], lambda i, c, s: (c, b.sin(s) * w))

    return b.if_(
        b.greater(b.reduce_sum(x, keepdims=0), np.float32(-99.0)), lambda: b.loop(2, [x], outer), lambda: b.neg(x)
    )


def _unrolled_nested(t: Any, x: Any, w: Any) -> Any:
    s = x
    for _ in range(2):
        s = t.sin(t.sin(s + x) * w) * w
    return s


case("loops in a branch", _nested, _unrolled_nested, x=(3,), w=(3,))

SCAN = """
module onnx opsets={"": 21}
func @main(%h: f32[2], %x: f32[2, 3], %w: f32[2]) -> (%last: f32[2], %y: f32[2, 3]) {
  %last, %y = scan %h, %x {num_scan_inputs=1, OPTIONS} : f32[2], f32[2, 3]
    body(%s: f32[2], %e: f32[2]) -> (%next, %seen) {
      %0 = mul %s, %w : f32[2]
      %1 = add %0, %e : f32[2]
      %next = tanh %1 : f32[2]
      %seen = mul %next, %e : f32[2]
      return %next, %seen
    }
  return %last, %y
}
"""


def _unrolled_scan(t: Any, h: Any, x: Any, w: Any) -> Any:
    seen = []
    for e in x.flip(1).unbind(1):
        h = t.tanh(h * w + e)
        seen.append(h * e)
    return [h, t.stack(seen, 1)]


OPTIONS = "scan_input_axes=[1], scan_input_directions=[1], scan_output_axes=[1]"
case("scan", SCAN.replace("OPTIONS", OPTIONS), _unrolled_scan, h=(2,), x=(2, 3), w=(2,))
