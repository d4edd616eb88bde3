"""What looks at all lanes of a vector at once."""

from __future__ import annotations

import numpy as np
import pytest
from loop_running import WIDTHS, run_both

from tilewright.graph import types
from tilewright.graph.diagnostics import TypeInferenceError
from tilewright.graph.dtypes import bool_, f32, i64
from tilewright.graph.kernel.loop_builder import LoopBuilder


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("lanes", [1, 4, 16, 64])
def test_any(width: int, lanes: int) -> None:
    b = LoopBuilder("any", x=types.buffer(bool_), y=types.buffer(i64))
    b.store(b.cast(b.any(b.load(b["x"], 0, lanes)), i64), b["y"], 0)
    module = b.module()
    for place in (None, 0, lanes - 1):
        x = np.zeros(lanes, bool)
        if place is not None:
            x[place] = True
        ours, compiled = run_both(module, [x, np.full(1, 7)], width)
        assert ours[1].tolist() == compiled[1].tolist() == [int(place is not None)]


def test_any_is_of_bools() -> None:
    b = LoopBuilder("any", x=types.buffer(f32))
    with pytest.raises(TypeInferenceError, match="vector of bools"):
        b.any(b.load(b["x"], 0, 4))
