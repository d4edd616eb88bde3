"""Walks a node through the versions of its operator, applying the registered steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import onnx.defs

from ....graph.module import INTERNAL_OPSET
from .conformance import conform, schema_at
from .node import CannotDowngrade, Facts, KeepOldForm, Node

Step: TypeAlias = Callable[[Node, Facts], None]

# The number of an opset is a 32-bit integer where onnx looks it up.
_NEWEST = 2**31 - 1

_up: dict[tuple[str, int], list[Step]] = {}
_down: dict[tuple[str, int], list[Step]] = {}


def step_up(version: int, *op_types: str) -> Callable[[Step], Step]:
    """Register the step that takes `op_types` from the version before `version` to `version`, in place.

    A step that raises KeepOldForm ends the walk: the node stays as the file has it.
    """

    def register(step: Step) -> Step:
        for op_type in op_types:
            _up.setdefault((op_type, version), []).append(step)
        return step

    return register


def step_down(version: int, *op_types: str) -> Callable[[Step], Step]:
    """Register the step that takes `op_types` from `version` to the version before it, in place."""

    def register(step: Step) -> Step:
        for op_type in op_types:
            _down.setdefault((op_type, version), []).append(step)
        return step

    return register


def registered_steps() -> set[tuple[str, int]]:
    """Every (operator, version) for which a step leads up to or down from that version."""
    return set(_up) | set(_down)


@cache
def versions(op_type: str, domain: str = "") -> tuple[int, ...]:
    """All versions at which ONNX (re)defined the operator, oldest first, up to the internal opset."""
    found: list[int] = []
    opset = _NEWEST if domain else INTERNAL_OPSET
    while opset >= 1:
        try:
            version = int(onnx.defs.get_schema(op_type, opset, domain).since_version)
        except onnx.defs.SchemaError:  # it is younger than that, or of no domain of ONNX
            break
        found.append(version)
        opset = version - 1
    return tuple(reversed(found))


def upgrade(node: Node, opset: int, facts: Facts) -> Node:
    """The form of `node`, written for `opset` of its domain, that is held in memory.

    An operator outside of the standard domains is returned unchanged. The result has `version` set if it stays in
    its old form.
    """
    result = node.copy()
    if node.domain == "ai.onnx.ml":
        result.version = _deprecated_version(node, opset)
    elif _is_ahead(node, opset):
        result.version = 1
    elif node.domain == "" and versions(node.op_type):
        try:
            _walk_up(result, opset, INTERNAL_OPSET, facts)
        except KeepOldForm:
            result = node.copy()
            result.version = _in_force(node, opset)
    return result


def _is_ahead(node: Node, opset: int) -> bool:
    """Whether ONNX defined the operator only after `opset`.

    ONNX Runtime has LayerNormalization in all opsets and writes it into older models; to us that is its version 1.
    """
    known = versions(node.op_type) if node.domain == "" else ()
    return bool(known) and opset < known[0]


def _in_force(node: Node, opset: int) -> int | None:
    return max((version for version in versions(node.op_type, node.domain) if version <= opset), default=None)


def _deprecated_version(node: Node, opset: int) -> int | None:
    """The version an operator of ai.onnx.ml stays at: one that was deprecated later, or has a new meaning.

    The others changed only by additions.
    """
    usable = [v for v in versions(node.op_type, node.domain) if v <= opset and schema_at(node.domain, node.op_type, v)]
    if not usable:
        return None
    new_meaning = node.op_type == "LabelEncoder" and usable[-1] == 1
    return usable[-1] if new_meaning or schema_at(node.domain, node.op_type, None) is None else None


def downgrade(node: Node, opset: int, facts: Facts) -> Node:
    """The form of `node`, held in memory, at `opset` of its domain. Raises CannotDowngrade if there is none."""
    result = node.copy()
    result.version = None
    if not versions(node.op_type, node.domain) or (node.version == 1 and _is_ahead(node, opset)):
        return result
    if node.domain == "":
        current = INTERNAL_OPSET if node.version is None else node.version
        if current > opset:
            _walk_down(result, current, opset, facts)
        elif node.version is not None:
            try:
                _walk_up(result, current, opset, facts)
            except KeepOldForm:
                raise CannotDowngrade(
                    f"{node.op_type} of opset {node.version} has another meaning at opset {opset}"
                ) from None
    as_it_was = node.version is not None and node.version == _in_force(node, opset)
    if node.domain in ("", "ai.onnx.ml") and not as_it_was:
        conform(result, node.version, opset, facts)
    return result


def _walk_up(node: Node, start: int, stop: int, facts: Facts) -> None:
    """From the form at opset `start` to that at `stop`; once a step renamed it, through the new name's history."""
    reached = start
    while True:
        pending = [version for version in versions(node.op_type) if reached < version <= stop]
        if not pending:
            return
        reached = pending[0]
        for step in _up.get((node.op_type, reached), ()):
            step(node, facts)


def _walk_down(node: Node, start: int, stop: int, facts: Facts) -> None:
    ceiling = start
    while True:
        pending = [version for version in versions(node.op_type) if stop < version <= ceiling]
        if not pending:
            return
        for step in _down.get((node.op_type, pending[-1]), ()):
            step(node, facts)
        ceiling = pending[-1] - 1
