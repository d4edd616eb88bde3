"""PyTorch's side of benchmarks/backward_kernels.py, run by the Python of an environment that has torch.

Reads a line of JSON for each question, what to run, and answers with the shortest time of some runs in seconds.
"""

from __future__ import annotations

import json
import sys
import time

import torch

LAST = torch.channels_last


def convolution(kind, size, channels, outputs, kernel, stride, groups):
    x = torch.randn(32, channels, size, size).to(memory_format=LAST)
    w = torch.randn(outputs, channels // groups, kernel, kernel).to(memory_format=LAST)
    grad = torch.randn_like(torch.conv2d(x, w, None, stride, kernel // 2, 1, groups))
    pads, wanted = [kernel // 2] * 2, [kind == "data", kind == "filters", False]
    return lambda: torch.ops.aten.convolution_backward(
        grad, x, w, None, [stride] * 2, pads, [1, 1], False, [0, 0], groups, wanted
    )


def backward(loss, inputs, grad):
    return lambda: torch.autograd.grad(loss, inputs, grad, retain_graph=True)


def attention(batch, heads, length, size, causal):
    q, k, v = (torch.randn(batch, heads, length, size, requires_grad=True) for _ in range(3))
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return backward(y, [q, k, v], torch.randn_like(y))


def max_pool(size, channels, kernel, stride, pad, way):
    x = torch.randn(32, channels, size, size).to(memory_format=LAST).requires_grad_()

    def forward():
        return torch.nn.functional.max_pool2d(x, kernel, stride, pad, return_indices=True)[0]

    return forward if way == "forward" else backward(y := forward(), [x], torch.randn_like(y))


def embedding(rows, width, count):
    table = torch.randn(rows, width, requires_grad=True)
    y = torch.nn.functional.embedding(torch.randint(0, rows, (count,)), table)
    return backward(y, [table], torch.randn_like(y))


def norm(kind, shape):
    x = torch.randn(*shape)
    x = (x.to(memory_format=LAST) if len(shape) == 4 else x).requires_grad_()
    channels = shape[1] if kind == "batch norm" else shape[-1]
    scale, bias = (torch.randn(channels, requires_grad=True) for _ in range(2))
    grad, functional = torch.randn_like(x), torch.nn.functional
    inputs = [x, scale] if kind in ("softmax", "rms norm") else [x, scale, bias]

    def forward():
        if kind == "batch norm":
            return functional.batch_norm(x, None, None, scale, bias, True)
        if kind == "layer norm":
            return functional.layer_norm(x, [channels], scale, bias)
        return functional.rms_norm(x, [channels], scale) if kind == "rms norm" else torch.softmax(x * scale, -1)

    return lambda: torch.autograd.grad(forward(), inputs, grad)


CASES = {each.__name__: each for each in (convolution, attention, max_pool, embedding, norm)}


def main():
    torch.set_num_threads(1)
    prepared = {}
    for line in sys.stdin:
        if line not in prepared:
            name, *given = json.loads(line)
            prepared[line] = CASES[name](*given)
            prepared[line]()
        best = float("inf")
        for _ in range(3):
            started = time.perf_counter()
            prepared[line]()
            best = min(best, time.perf_counter() - started)
        print(best, flush=True)


if __name__ == "__main__":
    main()
