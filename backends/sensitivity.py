"""How far a model's outputs move on their own when its inputs change in the last bit.

Some outputs cannot be held to a tolerance relative to their largest element: a sigmoid that is 1e-6 everywhere has
kept few digits of its argument, and the sine of a large number none. Two correct computations of such an output differ
by as much as the model differs from itself, so a report of a difference says how much that is. A rewrite that computes
something else is far beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import dtypes

DRAWS = 3

# The relative step to the next number (half of it for numbers just below a power of two).
_LAST_PLACE = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


def sensitivity(
    run: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    feeds: Mapping[str, Any],
    results: Mapping[str, Any],
    names: Sequence[str],
) -> dict[str, float]:
    """For each output in `names` that is a tensor, the largest change of a finite element.

    `results` is what `run` gives for `feeds`. The change is the largest of a few draws in which each element of the
    floating-point inputs moves by one unit in the last place, up or down. 0 for a model without floating-point inputs.
    """
    found = dict.fromkeys(names, 0.0)
    for draw in range(DRAWS):
        moved = run({name: _moved(value, np.random.default_rng([draw, 1])) for name, value in feeds.items()})
        for name in names:
            found[name] = max(found[name], _largest_change(results[name], moved[name]))
    return found


def _moved(value: Any, rng: np.random.Generator) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    step = _LAST_PLACE.get(dtypes.from_numpy(value.dtype).name)
    if step is None:
        return value
    wide = value.astype(np.float64)
    return (wide * (1 + step * rng.choice([-1.0, 1.0], value.shape))).astype(value.dtype)


def _largest_change(before: Any, after: Any) -> float:
    if not isinstance(before, np.ndarray) or not isinstance(after, np.ndarray) or before.shape != after.shape:
        return 0.0
    a, b = before.astype(np.float64), after.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    return float(np.abs(a[finite] - b[finite]).max()) if finite.any() else 0.0
