"""Python's search for circular garbage, which looks again and again at all of a graph that is being built."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .forks import renew_after_fork


class _Pausing:
    """The threads that will turn it on again."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        renew_after_fork(self)

    def renew(self) -> None:
        """A child has none of the other threads."""
        if self.threads - {threading.get_ident()}:
            gc.enable()
            self.threads.clear()


_pausing = _Pausing()


@contextmanager
def paused_collector() -> Iterator[None]:
    """Do without it for a while, as a context or a decorator: graphs are circular, and most of them stays in use."""
    was_enabled, thread = gc.isenabled(), threading.get_ident()
    if was_enabled:
        _pausing.threads.add(thread)
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
            _pausing.threads.discard(thread)
