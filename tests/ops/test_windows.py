"""Windows over spatial dims: how many places they have."""

from __future__ import annotations

import itertools

from tilewright.graph.ops.convolution import Window


def test_sizes_that_a_window_keeps() -> None:
    kept = 0
    for kernel, stride, dilation, before, after, auto_pad, ceil_mode, is_cut in itertools.product(
        range(1, 6), (1, 2), (1, 2), range(4), range(4), ("NOTSET", "SAME_UPPER", "VALID"), (False, True), (False, True)
    ):
        if auto_pad != "NOTSET" and before + after:
            continue
        window = Window((kernel,), (stride,), (dilation,), (before,), (after,), auto_pad, ceil_mode, is_cut)
        found = [window.positions(0, size) == size for size in range(20)]
        # A window that begins behind the image is left out with ceil_mode, so that a few more keep their sizes.
        assert window.keeps(0) == all(found) or (ceil_mode and all(found)), window
        kept += window.keeps(0)
    assert kept > 50
