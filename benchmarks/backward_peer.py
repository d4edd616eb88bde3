"""PyTorch's side of benchmarks/backward_kernels.py, run by the Python of an environment that has torch.

Reads a line of JSON for each question, what to run, and answers with the shortest time of some runs, in seconds of the
processor.
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
    channels = shape[-1] if len(shape) == 2 else shape[1]
    scale, bias = (torch.randn(channels, requires_grad=True) for _ in range(2))
    grad, functional = torch.randn_like(x), torch.nn.functional
    inputs = [x, scale] if kind in ("softmax", "rms norm") else [x, scale, bias]

    def forward():
        if kind == "batch norm":
            return functional.batch_norm(x, None, None, scale, bias, True)
        if kind == "group norm":
            return functional.group_norm(x, 8, scale, bias)
        if kind == "layer norm":
            return functional.layer_norm(x, [channels], scale, bias)
        return functional.rms_norm(x, [channels], scale) if kind == "rms norm" else torch.softmax(x * scale, -1)

    return lambda: torch.autograd.grad(forward(), inputs, grad)


def average_pool(size, channels, kernel, stride):
    x = torch.randn(32, channels, size, size).to(memory_format=LAST).requires_grad_()
    grad = torch.randn_like(torch.nn.functional.avg_pool2d(x, kernel, stride))

    def both():
        found = torch.nn.functional.avg_pool2d(x, kernel, stride)
        return torch.autograd.grad(found, [x], grad)

    return both


def update(kind, count):
    w = torch.ones(count, requires_grad=True)
    w.grad = torch.randn(count)
    match kind:
        case "sgd":
            optimizer = torch.optim.SGD([w], 0.1, fused=True)
        case "momentum":
            optimizer = torch.optim.SGD([w], 0.1, momentum=0.9, fused=True)
        case _:
            optimizer = torch.optim.Adam([w], 1e-3, fused=True)
    return optimizer.step


CASES = {each.__name__: each for each in (convolution, attention, max_pool, average_pool, embedding, norm, update)}


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
            started = time.process_time()
            prepared[line]()
            best = min(best, time.process_time() - started)
        print(best, flush=True)


if __name__ == "__main__":
    main()
