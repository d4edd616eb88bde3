"""Python's search for circular garbage, which looks again and again at all of a graph that is being built."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Do without it for a while, as a context or a decorator: graphs are circular, and most of them stays in use."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
