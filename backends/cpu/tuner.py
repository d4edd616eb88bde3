"""Choosing among ways to compute the same: by a model of their cost, or by measuring those that the model likes best.

A candidate is anything that a kernel can be built from, with an estimate of its seconds. What was measured is kept on
disk beside the compiled kernels, for this processor, and used by later processes whatever their mode but "off".

    off    the cheapest by the model: the same in every process
    fast   what was measured before, else the three that the model likes best are measured
    full   all are measured, and longer

A mode never changes what is computed but for the order in which sums are formed, so results can differ in their last
bits between modes and machines; the same choice gives the same bits.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ...graph.diagnostics import UsageError
from ...graph.forks import renew_after_fork
from .cache import DiskCache, default_cache, key_of
from .keys import spelled
from .machine import Machine

MODES = ("off", "fast", "full")

# Seconds for measuring: for one choice, and in all for one tuner. Compiling the candidates comes on top of the first.
_EACH = {"fast": 0.03, "full": 0.3}
_IN_ALL = {"fast": 5.0, "full": 120.0}
_MEASURED_IF_FAST = 3
_ROUNDS = 3

T = TypeVar("T")


@dataclass(frozen=True)
class Candidate(Generic[T]):
    """A way to compute something: `label` names it among its kind, `estimate` is the model's guess in seconds."""

    label: str
    value: T
    estimate: float


@dataclass(frozen=True)
class Choice:
    """What was chosen for `key` and why: `seconds` are those of candidates that were measured; `source` is "model",
    "measured" or "stored"."""

    key: str
    winner: str
    source: str
    estimates: dict[str, float]
    seconds: dict[str, float]


class Tuner:
    """Chooses for `machine`. `seconds` bounds all measuring (default: by mode). May be used by several threads."""

    def __init__(self, machine: Machine, mode: str = "off", seconds: float | None = None) -> None:
        self.machine = machine
        self.mode = checked(mode)
        self.choices: list[Choice] = []
        self._left = _IN_ALL.get(mode, 0.0) if seconds is None else seconds
        self._disk: DiskCache | None = None if mode == "off" else default_cache()
        self._known: dict[Hashable, Any] = {}
        self._lock = threading.RLock()
        renew_after_fork(self)

    def renew(self) -> None:
        self._lock = threading.RLock()

    def choose(
        self, key: Hashable, candidates: Sequence[Candidate[T]], measure: Callable[[T], Callable[[], object]]
    ) -> T:
        """The value of the best candidate for `key`; there must be one at least.

        `measure(value)` prepares a candidate and gives a function that runs it once. A candidate that cannot be
        prepared or run is an error of the program, and raises.
        """
        with self._lock:
            if key not in self._known:
                self._known[key] = self._choose(key, candidates, measure)
            chosen: T = self._known[key]
            return chosen

    def report(self) -> list[dict[str, Any]]:
        """Every choice so far: its key, the winner and why, and for each candidate the estimate and what it took."""
        return [
            {
                "key": choice.key, "winner": choice.winner, "source": choice.source,
                "candidates": [
                    {"label": label, "estimate": estimate, "seconds": choice.seconds.get(label)}
                    for label, estimate in choice.estimates.items()
                ],
            }
            for choice in self.choices
        ]  # fmt: skip

    def _choose(
        self, key: Hashable, candidates: Sequence[Candidate[T]], measure: Callable[[T], Callable[[], object]]
    ) -> T:
        ranked = sorted(candidates, key=lambda candidate: candidate.estimate)
        if not ranked:
            raise ValueError("there is nothing to choose from")
        place = self._place(key, ranked)
        seconds = self._stored(place)
        source = "stored"
        few = ranked if self.mode == "full" else ranked[:_MEASURED_IF_FAST]
        # What the fast mode measured does not answer the full one.
        if self.mode != "off" and len(ranked) > 1 and not set(seconds) >= {each.label for each in few}:
            seconds, source = self._measured(few, measure), "measured"
            if seconds and self._disk is not None and place:
                self._disk.write(place, json.dumps(seconds).encode())
        best = min(ranked, key=lambda each: seconds.get(each.label, float("inf"))) if seconds else ranked[0]
        if not seconds:
            source = "model"
        estimates = {each.label: each.estimate for each in ranked}
        self.choices.append(Choice(_shown(key), best.label, source, estimates, seconds))
        return best.value

    def _measured(
        self, candidates: Sequence[Candidate[T]], measure: Callable[[T], Callable[[], object]]
    ) -> dict[str, float]:
        """The shortest time of each, run in turn; nothing if the time for measuring is used up."""
        if self._left <= 0:
            return {}
        started = time.perf_counter()
        runs = {each.label: measure(each.value) for each in candidates}
        best = dict.fromkeys(runs, float("inf"))
        limit = time.perf_counter() + _EACH[self.mode] * len(runs)
        rounds = 0
        while rounds < _ROUNDS or time.perf_counter() < limit:
            for label, run in runs.items():
                begin = time.perf_counter()
                run()
                best[label] = min(best[label], time.perf_counter() - begin)
            rounds += 1
        self._left -= time.perf_counter() - started
        return best

    def _place(self, key: Hashable, candidates: Sequence[Candidate[T]]) -> str:
        """What names the measurements on disk; empty if the key cannot be spelled. Other candidates, other name."""
        text = spelled(key)
        labels = ",".join(sorted(each.label for each in candidates))
        return key_of(f"tuning\0{text}\0{labels}", self.machine) if text else ""

    def _stored(self, place: str) -> dict[str, float]:
        content = self._disk.read(place) if self._disk is not None and place else None
        return {} if content is None else {str(label): float(value) for label, value in json.loads(content).items()}


def choose(
    key: Hashable,
    candidates: Sequence[Candidate[T]],
    measure: Callable[[T], Callable[[], object]],
    mode: str,
    machine: Machine,
) -> T:
    """One choice by a tuner of its own; see `Tuner.choose`."""
    return Tuner(machine, mode).choose(key, candidates, measure)


def checked(mode: str) -> str:
    """`mode`. Raises UsageError if there is none of that name."""
    if mode not in MODES:
        raise UsageError("compile/tune", f"tune is one of {', '.join(MODES)}, not {mode!r}")
    return mode


def _shown(key: Hashable) -> str:
    """A key for people: short."""
    text = str(key)
    return text if len(text) <= 120 else f"{text[:117]}..."
