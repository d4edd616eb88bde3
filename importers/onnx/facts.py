"""What a message says besides its meaning, written back: doc string, properties, and what the IR does not model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def write_facts(proto: Any, facts: Mapping[str, Any]) -> None:
    """Put `doc_string`, `metadata_props` and `residual` of `facts`, as far as they are there, into a message."""
    if "doc_string" in facts:
        proto.doc_string = facts["doc_string"]
    for key, value in facts.get("metadata_props", {}).items():
        proto.metadata_props.add(key=key, value=value)
    if "residual" in facts:
        proto.MergeFromString(facts["residual"])
