"""Write down what PyTorch's autograd says of each case in torch_cases, for test_torch_gradients.py.

    PYTHON tests/training/record_torch_gradients.py [--check]

PYTHON is an interpreter that has torch and numpy; Tilewright is not needed. `--check`: compare with what is written
down instead.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch_cases import Case, all_cases, recorded

FILE = Path(__file__).with_name("torch_gradients.npz")


def answers(case: Case) -> np.ndarray:
    """Results, then gradients of all operands, in f32, end to end."""
    operands = {name: torch.tensor(array, requires_grad=True) for name, array in case.feeds().items()}
    found = case.theirs(torch, **operands)
    results = list(found) if isinstance(found, list | tuple) else [found]
    weights = case.weights([tuple(result.shape) for result in results])
    pairs = zip(results, weights, strict=True)
    total = sum((result * torch.from_numpy(weight)).sum() for result, weight in pairs)
    grads = torch.autograd.grad(total, list(operands.values()))
    return np.concatenate([each.detach().numpy().reshape(-1) for each in (*results, *grads)])


def main() -> int:
    torch.set_num_threads(1)
    found = {name: answers(case) for name, case in all_cases().items()}
    if "--check" not in sys.argv:
        sizes = [array.size for array in found.values()]
        names, values = np.array(list(found)), np.concatenate(list(found.values()))
        np.savez_compressed(FILE, torch=np.array(torch.__version__), names=names, sizes=sizes, values=values)
        print(f"{len(found)} cases of torch {torch.__version__}")
        return 0
    written = recorded(FILE)
    wrong = [name for name, array in found.items() if name not in written or not _agree(written[name], array)]
    wrong += sorted({*written} - {*found})
    print(f"{len(found)} cases, {len(wrong)} differ from what is written down: {wrong}")
    return bool(wrong)


def _agree(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)


if __name__ == "__main__":
    sys.exit(main())
