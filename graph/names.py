"""The text of names in the IR: values of a function, operators, functions, and words that may need quotes."""

from __future__ import annotations

from . import opdef
from .core import Block, Operation, Value
from .dims import label_of
from .lexer import PLAIN_NAME, PLAIN_WORD
from .literals import quote
from .module import FunctionKey
from .opdef import OpaqueDefinition, OpDefinition
from .types import TensorType, Type

# Words that mean something else where an operator's name may stand.
RESERVED = frozenset({"value_info", "none", "call"})


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


def type_text(type: Type) -> str:
    """A type as a model file writes it: dims by name alone, without ordinals, and `?` for one without a name.

    Two types of different models can be compared by it; within a module it says less than the type.
    """
    if not isinstance(type, TensorType) or type.shape is None:
        return str(type)
    labels = map(label_of, type.shape)
    return f"{type.dtype}[{', '.join('?' if label.startswith('?') else label for label in labels)}]"


def name_text(name: str) -> str:
    """`name` as it stands after `%`, in quotes unless it looks like a name (a number does not)."""
    return name if PLAIN_NAME.fullmatch(name) else quote(name)


def word(text: str) -> str:
    """`text` as a word, in quotes unless it looks like one."""
    return text if PLAIN_WORD.fullmatch(text) else quote(text)


def function_text(key: FunctionKey) -> str:
    domain = f"{word(key.domain)}::" if key.domain else ""
    return f"{domain}{word(key.name)}" + (f":{word(key.overload)}" if key.overload else "")


def operator_text(definition: OpDefinition) -> str:
    """The operator's own name where it leads back to the definition, else `"domain"::"OpType"`.

    `call` before that tells a model-local function from the operator of the same name that it hides.
    """
    name, known = definition.name, opdef.find_by_name(definition.name)
    opaque = isinstance(definition, OpaqueDefinition)
    leads_back = known is definition or (
        opaque and known is None and definition.domain and "." not in definition.op_type
    )
    if leads_back and PLAIN_WORD.fullmatch(name) and name not in RESERVED:
        return name
    text = f"{quote(definition.domain)}::{quote(definition.op_type)}"
    return f"call {text}" if opaque and opdef.find(definition.domain, definition.op_type) is not None else text
