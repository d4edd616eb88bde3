"""Where an operation came from, kept through every rewrite so that a kernel can name the nodes it stems from.

Text forms (after `@` in the IR): `"/enc/0/MatMul"#12` an ONNX node with its index, `node#12` one without a name,
`"net.py":8` a line of the user's Python file, `fold("a"#1, "b"#2)` a rewrite of several operations, `unknown`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType

# A rule's name that needs no quotes: a word of the IR's text form (see `lexer`).
_PLAIN_RULE = re.compile(r"[^\W\d](?:\w|[.-](?=\w))*")


@dataclass(frozen=True, slots=True)
class Location:
    """Base class; the plain instance `UNKNOWN` stands for "nobody knows"."""

    def __str__(self) -> str:
        return "unknown"

    @property
    def name(self) -> str:
        """The ONNX node name this location suggests; empty when it has none."""
        return ""

    def leaves(self) -> Iterator[Location]:
        """The source places below this one, in order."""
        yield self


UNKNOWN = Location()


@dataclass(frozen=True, slots=True)
class NodeLocation(Location):
    """A node of an ONNX graph: its name (may be empty) and its index in its own graph."""

    node_name: str
    index: int

    def __str__(self) -> str:
        name = json.dumps(self.node_name, ensure_ascii=False) if self.node_name else "node"
        return f"{name}#{self.index}"

    @property
    def name(self) -> str:
        return self.node_name


@dataclass(frozen=True, slots=True)
class FileLocation(Location):
    """A line of a Python file that built the operation."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{json.dumps(self.path, ensure_ascii=False)}:{self.line}"


@dataclass(frozen=True, slots=True)
class FusedLocation(Location):
    """What a rewrite made of several places; `rule` is the name of the pass or rule."""

    rule: str
    parts: tuple[Location, ...]

    def __str__(self) -> str:
        rule = self.rule if _PLAIN_RULE.fullmatch(self.rule) else json.dumps(self.rule, ensure_ascii=False)
        return f"{rule}({', '.join(map(str, self.parts))})"

    @property
    def name(self) -> str:
        return next((part.name for part in self.parts if part.name), "")

    def leaves(self) -> Iterator[Location]:
        for part in self.parts:
            yield from part.leaves()


def fuse(rule: str, parts: Iterable[Location]) -> Location:
    """The location of an operation that `rule` made from operations at `parts`; duplicates are dropped.

    Nested fusions are flattened to their leaves, so that a location stays as small as the number of source nodes.
    """
    leaves = dict.fromkeys(leaf for part in parts for leaf in part.leaves() if leaf is not UNKNOWN)
    return FusedLocation(rule, tuple(leaves)) if leaves else UNKNOWN


def caller_location(package_root: str) -> Location:
    """The nearest Python frame outside the package at `package_root`: the user's own line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(package_root):
        frame = frame.f_back
    return UNKNOWN if frame is None else FileLocation(frame.f_code.co_filename, frame.f_lineno)
