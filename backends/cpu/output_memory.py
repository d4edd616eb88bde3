"""Memory of large outputs, which is used again once nobody has them any more.

The C library asks the system for each piece of this size, and the system clears all of it: that takes longer than most
kernels take to fill it.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ...graph.kernel.strided import Shape

# glibc's largest M_MMAP_THRESHOLD: smaller pieces come from a heap that is kept anyway.
LARGE = 1 << 25


class OutputMemory:
    """Makes arrays for outputs. Safe for several threads.

    It keeps no more than the large outputs of one run take, those of the largest there was.
    """

    def __init__(self) -> None:
        self._free: deque[np.ndarray] = deque()
        self._most = 0

    def maker(self, sizes: Sequence[int]) -> Callable[[Shape, np.dtype], np.ndarray]:
        """What makes arrays for the outputs of a plan, which take these numbers of bytes."""
        large = sum(size for size in sizes if size >= LARGE)
        self._most = max(self._most, large)
        return self.empty if large else np.empty

    def empty(self, shape: Shape, dtype: np.dtype) -> np.ndarray:
        """An array that nobody else has, of any elements. Raises MemoryError."""
        size = math.prod(shape) * dtype.itemsize
        if size < LARGE:
            return np.empty(shape, dtype)
        memory = self._taken(size)
        if memory is None:
            memory = np.empty(size, np.uint8)
        # What arrays over it, and views of these, keep as their base.
        lease = (ctypes.c_char * size).from_buffer(memory)  # type: ignore[arg-type]
        weakref.finalize(lease, _give_back, weakref.ref(self), memory).atexit = False
        found: np.ndarray = np.frombuffer(lease, dtype).reshape(shape)  # type: ignore[call-overload]
        return found

    def _taken(self, size: int) -> np.ndarray | None:
        for _ in range(len(self._free)):
            try:
                memory = self._free.popleft()
            except IndexError:  # another thread has taken it
                break
            if size <= memory.nbytes <= 2 * size:
                return memory
            self._free.append(memory)
        return None

    def _put(self, memory: np.ndarray) -> None:
        self._free.append(memory)
        with contextlib.suppress(IndexError):  # other threads have taken all there was
            while sum(each.nbytes for each in list(self._free)) > self._most:
                self._free.popleft()


def _give_back(owner: weakref.ref[OutputMemory], memory: np.ndarray) -> None:
    found = owner()
    if found is not None:
        found._put(memory)
