"""PyTorch's side of benchmarks/train.py, run by the Python of an environment that has torch; Tilewright is not needed.

    python benchmarks/train_peer.py NETWORK FILE THREADS MODE OPTIMIZER RATE

FILE holds the first parameters (`p0`, `p1`, ...) and the batches (`x0`, `target0`, ...); MODE is eager or compile.
The modules below hold their parameters in the order of those in benchmarks/train_models.py.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np


def batches_in(path):
    """The pairs of inputs and targets in a file."""
    with np.load(path) as file:
        count = sum(name.startswith("target") for name in file.files)
        return [(file[f"x{index}"], file[f"target{index}"]) for index in range(count)]


def memory(what):
    """Bytes in /proc/self/status: VmRSS is what the process holds now, VmHWM what it held at most (Linux)."""
    try:
        with open("/proc/self/status") as file:
            found = [line.split()[1] for line in file if line.startswith(what)]
        return int(found[0]) * 1024
    except OSError:
        return 0


def serve(begin, batches):
    """Answer in lines of JSON: how long it takes to be ready; then for each number in a line of input so many steps.

    `begin` gives a function that trains on one batch and returns the loss.
    """
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer

    def answer(**facts):
        answers.write(json.dumps(facts) + "\n")
        answers.flush()

    before = memory("VmRSS")
    started = time.perf_counter()
    step = begin()
    answer(ready_s=time.perf_counter() - started, before_bytes=before)
    done = 0
    for line in sys.stdin:
        times, processor, losses = [], [], []
        for _ in range(int(line)):
            started, used = time.perf_counter(), time.process_time()
            losses.append(step(batches[done % len(batches)]))
            times.append(time.perf_counter() - started)
            processor.append(time.process_time() - used)
            done += 1
        answer(seconds=times, processor_seconds=processor, losses=losses, peak_bytes=memory("VmHWM"))


def main(network, path, threads, mode, optimizer, rate):
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(threads)

    class ResidualBlock(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
                nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs),
            )  # fmt: skip
            self.shortcut = None
            if stride != 1 or inputs != outputs:
                self.shortcut = nn.Sequential(
                    nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
                )

        def forward(self, x):
            return functional.relu(self.body(x) + (x if self.shortcut is None else self.shortcut(x)))

    class Attention(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

        def forward(self, x):
            def split(tensor):
                return tensor.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

            q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.output(mixed.transpose(1, 2).reshape(x.shape))

    class TransformerBlock(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.norm, self.attention, self.norm2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
            self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            x = x + self.attention(self.norm(x))
            return x + self.body(self.norm2(x))

    class Transformer(nn.Module):
        def __init__(self, layers, width, heads, length, tokens):
            super().__init__()
            self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
            self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(layers)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens)

        def forward(self, tokens):
            x = self.token(tokens) + self.place.weight
            return self.head(self.norm(self.blocks(x)))

    def resnet18():
        layers, width = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
        for outputs in (64, 128, 256, 512):
            layers += [ResidualBlock(width, outputs, 1 if outputs == 64 else 2), ResidualBlock(outputs, outputs, 1)]
            width = outputs
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))

    def mlp():
        return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

    def load(model):
        with np.load(path) as file:
            given = [torch.from_numpy(file[f"p{index}"]) for index in range(len(list(model.parameters())))]
        linear = {module.weight for module in model.modules() if isinstance(module, nn.Linear)}
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), given, strict=True):
                parameter.copy_(value.T if parameter in linear else value)

    def begin():
        torch.manual_seed(0)
        networks = {"softmax": lambda: nn.Linear(784, 10), "mlp": mlp, "resnet18": resnet18,
                    "transformer": lambda: Transformer(4, 256, 4, 128, 512)}  # fmt: skip
        model = networks[network]()
        load(model)
        if network == "resnet18":
            model = model.to(memory_format=torch.channels_last)
        makers = {
            "sgd": lambda: torch.optim.SGD(model.parameters(), rate, fused=True),
            "momentum": lambda: torch.optim.SGD(model.parameters(), rate, momentum=0.9, fused=True),
            "adam": lambda: torch.optim.Adam(model.parameters(), rate, fused=True),
        }
        update = makers[optimizer]()
        loss_of = nn.CrossEntropyLoss()

        def forward(x, target):
            scores = model(x)
            return loss_of(scores.flatten(0, -2), target.flatten())

        if mode == "compile":
            forward = torch.compile(forward)

        def step(batch):
            x, target = batch
            update.zero_grad(set_to_none=True)
            loss = forward(x, target)
            loss.backward()
            update.step()
            return loss.item()

        return step

    pairs = [tuple(map(torch.from_numpy, pair)) for pair in batches_in(path)]
    if network == "resnet18":
        pairs = [(x.contiguous(memory_format=torch.channels_last), target) for x, target in pairs]
    serve(begin, pairs)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5], float(sys.argv[6]))
