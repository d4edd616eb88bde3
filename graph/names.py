"""The text of names in the IR: values of a function, and words that may need quotes."""

from __future__ import annotations

from .core import Block, Operation, Value
from .lexer import PLAIN_NAME, PLAIN_WORD
from .literals import quote


def function_names(op: Operation) -> dict[Value, str]:
    """The text of every value of the function (or detached tree of operations) that holds `op`."""
    top = op
    while top.parent_op is not None:
        top = top.parent_op
    return value_names(top.parent) if top.parent is not None else {}


def value_names(block: Block) -> dict[Value, str]:
    """The text of every value defined in `block` and below: `%name`, or `%0`, `%1`, ... for a value without a name.

    A name that is taken in an enclosing scope gets an ordinal, `%name'1`; regions side by side may repeat names.
    """
    texts: dict[Value, str] = {}
    taken: dict[str, int] = {}
    unnamed = 0

    def define(value: Value, scope: list[str]) -> None:
        nonlocal unnamed
        if value.name is None:
            texts[value] = f"%{unnamed}"
            unnamed += 1
            return
        ordinal = taken.get(value.name, 0)
        taken[value.name] = ordinal + 1
        scope.append(value.name)
        texts[value] = f"%{name_text(value.name)}'{ordinal}" if ordinal else f"%{name_text(value.name)}"

    def visit(inner: Block) -> None:
        scope: list[str] = []
        for argument in inner.arguments:
            define(argument, scope)
        for op in inner:
            for result in op.results:
                define(result, scope)
            for region in op.regions.values():
                visit(region.block)
        for name in scope:
            taken[name] -= 1

    visit(block)
    return texts


def name_text(name: str) -> str:
    """`name` as it stands after `%`, in quotes unless it looks like a name (a number does not)."""
    return name if PLAIN_NAME.fullmatch(name) else quote(name)


def word(text: str) -> str:
    """`text` as a word, in quotes unless it looks like one."""
    return text if PLAIN_WORD.fullmatch(text) else quote(text)
