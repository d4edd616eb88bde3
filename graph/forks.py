"""What a forked child has to do over: it has none of its parent's threads, and the locks that those held stay held.

What such locks guard is put in place by a last assignment, so a plan or a kernel that another thread was just making is
not there in the child, which makes its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Protocol


class Renewable(Protocol):
    """Has locks, or waits for threads."""

    def renew(self) -> None:
        """In a forked child: have new locks, and wait for no thread of the parent's."""


def hold_while_forking(lock: threading.Lock) -> None:
    """Wait for what a lock guards to end before this process is forked, so that no child finds it half done."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


_live: weakref.WeakSet[Any] = weakref.WeakSet()


def renew_after_fork(owner: Renewable) -> None:
    """Call `owner.renew()` in every child that this process is forked into, as long as the owner is in use."""
    _live.add(owner)


def _renew() -> None:
    for owner in list(_live):
        owner.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
