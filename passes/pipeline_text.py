"""The text of pipelines: `import-cleanup,fold{max-bytes=4096},repeat(max=4){cse,dce}`.

pipeline = item {"," item}
item     = name ["{" option {" " option} "}"]          a pass, or a preset such as O2
         | "repeat" ["(" option ")"] "{" pipeline "}"  until nothing changes, at most `max` times
option   = name "=" value
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from ..graph.diagnostics import UsageError, require

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_OPTION = re.compile(r'([A-Za-z_][A-Za-z0-9_-]*)\s*=\s*(\[[^\]]*\]|"(?:[^"\\]|\\.)*"|[^\s,{}()"\[\]]+)')
_SPACE = re.compile(r"\s*")
# Repeats in repeats.
MAX_DEPTH = 20


@dataclass(frozen=True)
class NamedItem:
    """A pass or preset with its options as text."""

    name: str
    options: dict[str, str]
    position: int


@dataclass(frozen=True)
class RepeatItem:
    """A part of the pipeline that runs until nothing changes."""

    options: dict[str, str]
    body: tuple[NamedItem | RepeatItem, ...]


def pipeline_text(passes: str | Sequence[str]) -> str:
    """A pipeline as one text: the text itself, or its items one by one. Raises UsageError for anything else."""
    wanted = 'a pipeline such as "fold,cse,dce", or a list of such'
    require("passes", passes, (str, list, tuple), wanted)
    for item in passes:
        require("an item of passes", item, str, wanted)
    return passes if isinstance(passes, str) else ",".join(item for item in passes if item.strip())


def parse_items(text: str) -> tuple[NamedItem | RepeatItem, ...]:
    """The items of a pipeline; an empty text is an empty pipeline. Raises UsageError pointing at the place."""
    reader = _Reader(text)
    if not text.strip():
        return ()
    items = reader.items()
    reader.space()
    if reader.position < len(text):
        reader.fail("expected ',' or the end")
    return items


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.position, self.depth = text, 0, 0

    def items(self) -> tuple[NamedItem | RepeatItem, ...]:
        items = [self.item()]
        while self.take(","):
            items.append(self.item())
        return tuple(items)

    def item(self) -> NamedItem | RepeatItem:
        self.space()
        start = self.position
        match = _NAME.match(self.text, start)
        if match is None:
            self.fail("expected the name of a pass")
        self.position = match.end()
        name = match[0]
        if name != "repeat":
            return NamedItem(name, self.options("}") if self.take("{") else {}, start)
        options = self.options(")") if self.take("(") else {}
        self.expect("{")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"repeats are nested deeper than {MAX_DEPTH} levels")
        body = self.items()
        self.depth -= 1
        self.expect("}")
        return RepeatItem(options, body)

    def options(self, closing: str) -> dict[str, str]:
        found: dict[str, str] = {}
        while not self.take(closing):
            self.space()
            match = _OPTION.match(self.text, self.position)
            if match is None:
                self.fail(f"expected name=value or '{closing}'")
            if match[1] in found:
                self.fail(f"the option {match[1]!r} is given twice")
            found[match[1]] = match[2]
            self.position = match.end()
            self.take(",")
        return found

    def take(self, character: str) -> bool:
        self.space()
        if not self.text.startswith(character, self.position):
            return False
        self.position += len(character)
        return True

    def expect(self, character: str) -> None:
        if not self.take(character):
            self.fail(f"expected '{character}'")

    def space(self) -> None:
        match = _SPACE.match(self.text, self.position)
        if match is not None:
            self.position = match.end()

    def fail(self, message: str) -> NoReturn:
        pointer = " " * self.position + "^"
        raise UsageError("pipeline/syntax", f"{message} in the pipeline", notes=[self.text, pointer])
