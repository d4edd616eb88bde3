"""Planning concatenations: whatever does not lie in the result already is copied there."""

from __future__ import annotations

from ...graph.core import Operation
from .plan_map import order_of
from .plan_moves import copy
from .planner import Planner, plans


@plans("kernel.concat")
def plan_concat(planner: Planner, op: Operation) -> None:
    whole = planner.layout_of(op.result)
    if whole is None:
        largest = max(op.operand_values, key=lambda value: planner.view(value).layout.size)
        whole = planner.new(op.result, order_of(planner, [largest], planner.shape(largest)))
    for index, value in enumerate(op.operand_values):
        target = whole.seen(planner.part_of(op, index, whole.layout))
        source = planner.view(value)
        if source.storage is whole.storage and source.layout == target.layout:
            continue
        if source.layout.size:
            copy(planner, source, target)
