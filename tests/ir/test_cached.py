"""Properties that are worked out once, and the collector that rests meanwhile, also where a process is forked."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable

import pytest

from tilewright.graph.cached import cached_property
from tilewright.graph.collector import paused_collector

can_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes to fork here")
quiet = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Thing:
    def __init__(self, work: Callable[[], object] = object) -> None:
        self.work = work

    @cached_property
    def found(self) -> object:
        """What work gives."""
        return self.work()


def in_child(test: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        os._exit(0 if test() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_property_is_worked_out_once() -> None:
    one, other = Thing(), Thing()
    assert one.found is one.found
    assert one.found is not other.found
    assert Thing.found.__doc__ == "What work gives."
    other.__dict__["found"] = 5
    assert other.found == 5


@can_fork
@quiet
def test_a_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    begun, go = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: Thing(lambda: (begun.set(), go.wait())).found)
    thread.start()
    begun.wait()
    try:
        assert in_child(lambda: Thing(lambda: 3).found == 3)
    finally:
        go.set()
        thread.join()


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_is_what_it_was(is_enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        with pytest.raises(KeyError), paused_collector(), paused_collector():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if before else gc.disable)()


@can_fork
@quiet
def test_a_child_has_a_collector_that_a_thread_has_paused() -> None:
    begun, go = threading.Event(), threading.Event()

    @paused_collector()
    def pause() -> None:
        begun.set()
        go.wait()

    assert gc.isenabled()
    thread = threading.Thread(target=pause)
    thread.start()
    begun.wait()
    try:
        assert not gc.isenabled()
        assert in_child(gc.isenabled)
        with paused_collector():
            assert in_child(gc.isenabled)
    finally:
        go.set()
        thread.join()
    assert gc.isenabled()
    with paused_collector():
        assert in_child(lambda: not gc.isenabled())
