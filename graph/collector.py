"""Python's search for circular garbage, which looks again and again at all of a graph that is being built."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# The threads that will turn it on again.
_pausing: set[int] = set()


@contextmanager
def paused_collector() -> Iterator[None]:
    """Do without it for a while, as a context or a decorator: graphs are circular, and most of them stays in use."""
    was_enabled, thread = gc.isenabled(), threading.get_ident()
    if was_enabled:
        _pausing.add(thread)
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
            _pausing.discard(thread)


def _renew() -> None:
    """In a forked child, which has none of the other threads."""
    if _pausing - {threading.get_ident()}:
        gc.enable()
        _pausing.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
