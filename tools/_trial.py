"""Running a model on made-up inputs: which sizes it takes is found by trying."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.backends.parity import FIRST_TRIES
from tilewright.graph.diagnostics import ExecutionError
from tilewright.graph.evaluation import describe

if TYPE_CHECKING:
    from tilewright.backends.executable import Executable
    from tilewright.backends.feeds import FeedPlan

# So many of the shapes that were tried are listed when none is accepted.
LISTED_TRIES = 4


@dataclass(frozen=True)
class Trial:
    """Inputs that a model accepts, its outputs, and the seconds of that run, planning and compiling included."""

    feeds: dict[str, Any]
    outputs: dict[str, Any]
    seconds: float


def first_that_runs(executable: Executable, plan: FeedPlan, wanted: list[str] | None = None, seed: int = 0) -> Trial:
    """The first of the inputs that `plan` makes up with which the model runs.

    Raises the error of the first, with a note of what was tried, if it runs with none. A model whose inputs are all
    given is run once.
    """
    first_error: ExecutionError | None = None
    tried: dict[str, None] = {}
    for tries, scenario in enumerate(plan.scenarios()):
        if tries >= FIRST_TRIES:
            break
        feeds = plan.feeds(scenario, seed)
        started = time.perf_counter()
        try:
            outputs = executable.run(feeds, wanted)
        except ExecutionError as error:
            first_error = first_error or error
            tried[inputs_text({facts.name: feeds[facts.name] for facts in plan.inputs})] = None
            continue
        return Trial(feeds, outputs, time.perf_counter() - started)
    assert first_error is not None, "a plan has at least one scenario"
    shown = list(tried)[:LISTED_TRIES]
    if plan.choices and shown:
        more = f", and {len(tried) - len(shown)} more" if len(tried) > len(shown) else ""
        first_error.with_note(f"made-up inputs that do not run: {'; '.join(shown)}{more}")
        first_error.with_note("give sizes that fit: --input-shape NAME:DIMS, --dim NAME=SIZE, or --input NAME=FILE")
    raise first_error


def inputs_text(feeds: dict[str, Any]) -> str:
    """`x f32[1, 3, 224, 224], length i64[1]`: what is given to a model, in short."""
    return ", ".join(f"{name} {describe(value)}" for name, value in feeds.items())


def input_types(feeds: dict[str, Any], plan: FeedPlan) -> list[dict[str, Any]]:
    """Name and type of each input as JSON values, and whether it is made up."""
    made_up = {facts.name for facts in plan.inputs}
    return [{"name": name, "type": describe(value), "made_up": name in made_up} for name, value in feeds.items()]
