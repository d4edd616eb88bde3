"""Inputs for a model that came without any: deterministic, of the declared types, and such that the model can run.

    plan = FeedPlan(module)
    for scenario in plan.scenarios():        # sizes and choices to try, most ordinary first
        feeds = plan.feeds(scenario, seed=0)

Floats are standard normal, or pages of strokes where they look like images; integers that index a table lie inside it;
masks are ones with some zeros at an end, or hide all in a row if that is asked for; an integer that the model compares
with constants is one of these; other integers are small and positive, since one may be a divisor or a count.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..graph import dtypes, types
from ..graph.diagnostics import UsageError
from ..graph.dims import is_symbol
from ..graph.dtypes import DType
from ..graph.module import Module
from ..graph.ops.masked_rows import lowest
from ..graph.types import TensorType, Type
from .feed_sizes import UNRANKED, Choice, FreeDims, combinations, resolve, shape_for
from .input_facts import InputFacts, facts_of_inputs, named_sizes
from .sample_images import image_axes, pages

# Positions into the options of each of a plan's choices.
Scenario = tuple[int, ...]

WORDS = ("", "tile", "Wright", "graph", "Zürich", "0", "a b")
_LARGEST_FREE_INTEGER = 9


class FeedPlan:
    """How to make inputs for `module`.

    `dims` fixes dims by name, `shapes` the shape of inputs by name, `given` gives inputs outright (their shapes count
    too). `within` is a second model with the same inputs: where it knows a size that `module` leaves open, it counts.
    Raises UsageError for names that the model does not have, and for inputs whose type cannot be generated.
    """

    def __init__(
        self,
        module: Module,
        dims: Mapping[str, int] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        given: Mapping[str, Any] | None = None,
        within: Module | None = None,
    ) -> None:
        self.given = dict(given or {})
        self._types = {argument.name or "": argument.type for argument in module.main.inputs}
        self._check_names([*self.given, *(shapes or {})])
        self.inputs = tuple(facts for facts in facts_of_inputs(module) if facts.name not in self.given)
        self.dims = FreeDims()
        for name, type in self._types.items():
            self.dims.add(name, type)
        self._pin(dims or {}, shapes or {}, within)
        self.shapes = {name: tuple(shape) for name, shape in (shapes or {}).items()}
        self.choices = [*self.dims.choices(named_sizes(module)), *self._value_choices()]

    def _check_names(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._types:
                known = ", ".join(self._types) or "none"
                raise UsageError(
                    "feeds/unknown-input", f"the model has no input {name!r}", notes=[f"its inputs are {known}"]
                )

    def _pin(self, dims: Mapping[str, int], shapes: Mapping[str, Sequence[int]], within: Module | None) -> None:
        for key, size in dims.items():
            if key not in self.dims.roles:
                known = ", ".join(self.dims.roles) or "none"
                raise UsageError(
                    "feeds/unknown-dim", f"no input has a dim called {key!r}", notes=[f"the open dims are {known}"]
                )
            self.dims.pin(key, size, "the given dims")
        for name, shape in shapes.items():
            self.dims.pin_shape(name, self._types[name], shape, "the given shape")
        for name, value in self.given.items():
            if isinstance(self._types[name], TensorType):
                self.dims.pin_shape(name, self._types[name], np.shape(value), "the given array")
        for argument in within.main.inputs if within is not None else ():
            self._pin_within(argument.name or "", argument.type)

    def _pin_within(self, name: str, narrower: Type) -> None:
        mine = self._types.get(name)
        if not isinstance(mine, TensorType) or not isinstance(narrower, TensorType):
            return
        if mine.shape is None or narrower.shape is None or len(mine.shape) != len(narrower.shape):
            return
        for axis, (dim, size) in enumerate(zip(mine.shape, narrower.shape, strict=True)):
            resolved = resolve(dim, name, axis)
            if isinstance(size, int) and not isinstance(resolved, int) and is_symbol(resolved):
                self.dims.pinned.setdefault(resolved.label, size)

    def _value_choices(self) -> list[Choice]:
        choices = []
        for facts in self.inputs:
            type = facts.type
            if facts.choices:
                choices.append(Choice(facts.name, [{facts.name: value} for value in facts.choices], 2))
            elif types.is_scalar_of(type, dtypes.bool_):
                choices.append(Choice(facts.name, [{facts.name: True}, {facts.name: False}], 2))
            if isinstance(type, TensorType) and type.shape is None and facts.name not in self.shapes:
                choices.append(Choice(f"shape of {facts.name}", [{f"shape of {facts.name}": s} for s in UNRANKED], 2))
        return choices

    # ---- scenarios -----------------------------------------------------------------------------------------------

    def scenarios(self, unlike: Sequence[Scenario] = ()) -> Iterator[Scenario]:
        """Combinations of sizes and values to try, most ordinary first.

        `unlike` names scenarios already in use: those that differ from them in most respects then come first.
        """
        return combinations(self.choices, unlike)

    def neighbours(self, scenario: Scenario) -> Iterator[Scenario]:
        """Combinations that differ from `scenario` in one choice, the first or the second option of it."""
        for place, choice in enumerate(self.choices):
            for index in range(min(2, len(choice.options))):
                if index != scenario[place]:
                    yield (*scenario[:place], index, *scenario[place + 1 :])

    def chosen(self, scenario: Scenario) -> dict[str, Any]:
        """The size of each open dim and the values chosen, by name."""
        merged: dict[str, Any] = dict(self.dims.pinned)
        for choice, index in zip(self.choices, scenario, strict=True):
            merged |= choice.options[index]
        return merged

    def describe(self, scenario: Scenario) -> str:
        """`batch=1 height=64 width=64`; empty for a model whose inputs leave nothing open."""
        return " ".join(f"{name}={value}" for name, value in self.chosen(scenario).items())

    # ---- values --------------------------------------------------------------------------------------------------

    def feeds(self, scenario: Scenario, seed: int = 0, hidden: float | None = None) -> dict[str, Any]:
        """All inputs without a default, the given ones included, by name; the same for the same arguments.

        With `hidden`, masks have a row that hides all keys, those that are added by this number (or the lowest of their
        type).
        """
        chosen = self.chosen(scenario)
        feeds = dict(self.given)
        for position, facts in enumerate(self.inputs):
            rng = np.random.default_rng([seed, position])
            value = self._value(facts, facts.type, chosen, rng, seed)
            is_mask = hidden is not None and (facts.is_mask or facts.hides_keys)
            feeds[facts.name] = _with_hidden_rows(value, hidden or 0.0) if is_mask else value
        return feeds

    def ways_to_hide(self) -> list[float]:
        """The values of `hidden` that are worth a run: none where there is no mask."""
        if any(facts.hides_keys for facts in self.inputs):
            return [-sys.float_info.max, -math.inf]
        return [-math.inf] if any(facts.is_mask for facts in self.inputs) else []

    def _value(self, facts: InputFacts, type: Type, chosen: dict[str, Any], rng: np.random.Generator, seed: int) -> Any:
        if isinstance(type, types.OptionalType):
            return self._value(facts, type.element, chosen, rng, seed)
        if isinstance(type, types.SequenceType):
            return [self._value(facts, type.element, chosen, rng, seed) for _ in range(2)]
        if isinstance(type, types.MapType):
            keys: Sequence[Any] = WORDS[1:4] if type.key is dtypes.string else range(3)
            return {key: _plain(self._value(facts, type.value, chosen, rng, seed)) for key in keys}
        if not isinstance(type, TensorType):
            raise UsageError(
                "feeds/type",
                f"no value can be made up for the input {facts.name!r}, whose type is {type}",
                notes=["give one: --input NAME=FILE on the command line, feeds={...} in Python"],
            )
        if facts.name in chosen:
            return np.full(self._shape(facts, type, chosen), chosen[facts.name], type.dtype.numpy)
        return random_tensor(facts, type.dtype, self._shape(facts, type, chosen), rng, seed)

    def _shape(self, facts: InputFacts, type: TensorType, chosen: dict[str, Any]) -> tuple[int, ...]:
        if facts.name in self.shapes:
            return self.shapes[facts.name]
        if type.shape is None:
            unranked: tuple[int, ...] = chosen.get(f"shape of {facts.name}", ())
            return unranked
        return shape_for(facts.name, type.shape, chosen)


def random_tensor(
    facts: InputFacts, dtype: DType, shape: tuple[int, ...], rng: np.random.Generator, seed: int = 0
) -> np.ndarray:
    """An array of `dtype` and `shape` that suits `facts`."""
    if dtype is dtypes.string:
        return rng.choice(np.array(WORDS, object), shape)
    if facts.is_mask:
        return _mask(shape, seed).astype(dtype.numpy)
    if dtype.kind == "bool":
        return rng.random(shape) < 0.5
    if dtype.kind == "complex":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype.numpy)
    if not dtype.is_integer:
        values = pages(shape, rng) if image_axes(shape) else np.asarray(rng.standard_normal(shape))
        return values.astype(dtype.numpy)
    if facts.is_position and shape:
        length = shape[-1] if facts.bound is None else min(shape[-1], facts.bound)
        return np.broadcast_to(np.arange(shape[-1]) % max(length, 1), shape).astype(dtype.numpy)
    low, high = _integer_range(facts, dtype)
    return rng.integers(low, high, shape, np.int64, endpoint=True).astype(dtype.numpy)


def _integer_range(facts: InputFacts, dtype: DType) -> tuple[int, int]:
    if facts.bound is not None:
        return 0, facts.bound - 1
    if dtype.bits <= 8 and not facts.is_divisor:
        # Pixels, and the values of quantized networks: the whole range.
        lowest = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
        return lowest, lowest + (1 << dtype.bits) - 1
    return 1, min(_LARGEST_FREE_INTEGER, (1 << (dtype.bits - 1)) - 1)


def _mask(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Ones, with row r ending in (even seeds) or starting with (odd seeds) up to r + 1 zeros, never all zeros.

    Zeros at the end come first because causal attention always finds something to attend to there.
    """
    mask = np.ones(shape, np.int64)
    length = shape[-1] if shape else 0
    rows = mask.reshape(-1, length) if length else mask.reshape(0, 0)
    for index, row in enumerate(rows):
        count = min(index + 1, length // 2)
        if count:
            row[slice(-count, None) if seed % 2 == 0 else slice(count)] = 0
    return mask


def _with_hidden_rows(mask: np.ndarray, hidden: float) -> np.ndarray:
    """A mask whose first row hides everything; of zeros and ones, the last row too, should ones be what hides."""
    changed = mask.copy()
    if not mask.ndim or not mask.size:
        return changed
    length = mask.shape[-1]
    rows = changed.reshape(-1, length)
    if dtypes.from_numpy(mask.dtype).is_float:
        rows[:] = 0
        rows[:, : length // 2] = rows[0] = max(hidden, lowest(mask.dtype)) if math.isfinite(hidden) else hidden
        return changed
    rows[-1], rows[0] = 1, 0
    return changed


def _plain(value: Any) -> Any:
    """A scalar array as a Python number: what the values of ONNX maps are."""
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
