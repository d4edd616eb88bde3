"""Options in pipeline text: `{max-bytes=4096 flag=true names=[a, b]}` to and from the fields of a frozen dataclass.

Values by field type: int `12`, float `0.5`, bool `true`/`false`, str `word` or `"quoted text"`, tuple `[a, b]`,
and `none` where the field's type allows None. Fields at their default are not printed.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import types
import typing
from dataclasses import Field, fields
from typing import Any, Literal

from ..graph.diagnostics import UsageError

_WORD = re.compile(r"[A-Za-z0-9_.+/:*-]+")


def print_options(instance: Any) -> str:
    """The options of a pass that differ from their defaults, in braces; empty if none does."""
    shown = [
        f"{field.name.replace('_', '-')}={_print_value(getattr(instance, field.name))}"
        for field in fields(instance)
        if getattr(instance, field.name) != _default(field)
    ]
    return f"{{{' '.join(shown)}}}" if shown else ""


def make(cls: type[Any], options: dict[str, str], name: str) -> Any:
    """An instance of the dataclass `cls` with options given as text. Raises UsageError, listing what exists."""
    known = {field.name.replace("_", "-"): field for field in fields(cls)}
    values = {}
    for key, text in options.items():
        if key not in known:
            listing = ", ".join(known) or "none"
            raise UsageError("pipeline/option", f"{name} has no option {key!r}", notes=[f"its options are: {listing}"])
        field_name = known[key].name
        hint = _hint(cls, field_name)
        try:
            values[field_name] = _parse_value(text, hint)
        except ValueError:
            wanted = _type_text(hint)
            raise UsageError("pipeline/option", f"{name}: {key} takes {wanted}, not {text!r}") from None
    return cls(**values)


def _hint(cls: type[Any], field_name: str) -> Any:
    """The type of one field; other annotations of the class may name what is imported for type checkers only."""
    owner = next(base for base in cls.__mro__ if field_name in inspect.get_annotations(base))
    annotation = inspect.get_annotations(owner)[field_name]
    return eval(annotation, vars(sys.modules[owner.__module__])) if isinstance(annotation, str) else annotation


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if callable(field.default_factory) else field.default


def _print_value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_print_value, value))}]"
    if isinstance(value, str):
        return value if _WORD.fullmatch(value) and value != "none" else json.dumps(value)
    return repr(value)


def _parse_value(text: str, hint: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        choices = typing.get_args(hint)
        if type(None) in choices and text == "none":
            return None
        return _first_that_parses(text, [choice for choice in choices if choice is not type(None)])
    if origin is Literal:
        value = _unquote(text)
        return _one_of(value, typing.get_args(hint))
    if origin is tuple:
        return _parse_tuple(text, typing.get_args(hint)[0])
    if hint is bool:
        return {"true": True, "false": False}[_one_of(text, ("true", "false"))]
    if hint is int:
        return int(text)
    if hint is float:
        return float(text)
    if hint is str:
        return _unquote(text)
    raise TypeError(f"an option cannot have the type {hint}")


def _first_that_parses(text: str, choices: list[Any]) -> Any:
    for choice in choices[:-1]:
        try:
            return _parse_value(text, choice)
        except ValueError:
            continue
    return _parse_value(text, choices[-1])


def _parse_tuple(text: str, element: Any) -> tuple[Any, ...]:
    if not (text.startswith("[") and text.endswith("]")):
        raise ValueError(text)
    items = re.findall(r'"(?:[^"\\]|\\.)*"|[^,\s]+', text[1:-1])
    return tuple(_parse_value(item, element) for item in items)


def _unquote(text: str) -> str:
    if not text.startswith('"'):
        return text
    value = json.loads(text)
    if not isinstance(value, str):
        raise ValueError(text)
    return value


def _one_of(value: str, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        raise ValueError(value)
    return value


def _type_text(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(str, typing.get_args(hint)))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(hint, str(hint).replace("typing.", ""))
