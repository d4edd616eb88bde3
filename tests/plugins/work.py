"""How much work Python code does, counted, not timed: the same on every machine, however busy it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(function: Callable[[], object]) -> int:
    """How many lines of Python `function` runs, and all that it calls on this thread (comprehensions: per round).

    Work inside of C functions is not seen: `x in a_long_list` is one line.
    """
    lines = 0

    def follow(_: FrameType, event: str, __: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return follow

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        function()
    finally:
        sys.settrace(before)
    return lines
