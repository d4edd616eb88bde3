"""Training: `tilewright.train.check_gradients` holds a model's gradient against differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .backends.model_source import ModelLike, open_model

if TYPE_CHECKING:
    from .passes.training.check import GradientReport


def check_gradients(
    model: ModelLike,
    feeds: Mapping[str, Any] | None = None,
    of: Any = None,
    wrt: Any = None,
    *,
    directions: int = 2,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> GradientReport:
    """Compare the gradient of a model with differences, in float64: `print` the report, or ask whether it `passed`.

    Args:
        feeds: the inputs of the point to check at; those left out are made up from `seed`.
        of: names of float outputs or other tensors (default: all float outputs), weighted at random.
        wrt: names of float inputs and initializers (default: all).
        directions: how many random directions to go for each of them.
        tolerance: the relative error up to which a derivative counts as right.

    A parameter at a kink, such as a Relu's at 0, is reported as one and not counted. Raises UsageError if there is
    nothing to check, GradientError if there is no gradient.
    """
    from .backends.feeds import FeedPlan
    from .passes.training.check import check_gradients as run

    module = open_model(model).module
    given = dict(feeds or {})
    if any(argument.name not in given for argument in module.main.inputs):
        plan = FeedPlan(module, given=given)
        given = plan.feeds(next(plan.scenarios()), seed)
    return run(module, given, of, wrt, directions=directions, tolerance=tolerance, seed=seed)


__all__ = ["check_gradients"]
