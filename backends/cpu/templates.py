"""Plans made from earlier plans: of a segment whose sizes vary, the calls are mostly the same and only numbers differ.

The first plan is traced (`graph.kernel.tracing`): what its numbers are computed from, and under which conditions the
planners decide as they did. For other sizes that meet the conditions the numbers are computed in a fraction of the
time; for others there will be another trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph.core import Value
from ...graph.diagnostics import ExecutionError, TilewrightError
from ...graph.kernel.strided import Shape
from ...graph.kernel.tracing import Number, Recipe, Trace
from ...graph.types import TensorType
from .planner import Planner
from .program import Outline, Program

if TYPE_CHECKING:
    from .planner import Shared
    from .segment import Segment

# So many templates of one segment are kept; sizes that need yet another are planned without.
MOST_TEMPLATES = 16


class Templates:
    """Those of one segment, for inputs of certain ranks and known elements. Not for several threads at once."""

    def __init__(self, shared: Shared, segment: Segment, values: Mapping[Value, np.ndarray]) -> None:
        self._shared, self._segment, self._values = shared, segment, values
        self._found: list[_Template] = []
        self._is_traceable = True

    def program(self, shapes: Sequence[Shape]) -> Program:
        """The plan for inputs of these shapes. Raises ExecutionError if the model cannot run with them."""
        varying = _varying(self._segment, shapes)
        sizes = [shapes[index][axis] for index, axis in varying]
        for template in self._found:
            # Where a size is not the declared one after all, a plan for that one does not say what depends on it.
            program = template.program(sizes) if template.varying == varying else None
            if program is not None:
                return program
        if varying and self._is_traceable:
            try:
                template = self._trace(shapes, varying, sizes)
            except TilewrightError:
                raise
            except Exception:  # a planner that does something with numbers that cannot be traced
                self._is_traceable = False
            else:
                # One more that is not kept has the same kernels as those that are.
                if len(self._found) < MOST_TEMPLATES:
                    self._found.append(template)
                return template.first
        return self._planned(shapes)

    def _trace(self, shapes: Sequence[Shape], varying: Sequence[tuple[int, int]], sizes: Sequence[int]) -> _Template:
        trace = Trace(sizes)
        traced = [list(shape) for shape in shapes]
        for (index, axis), number in zip(varying, trace.inputs, strict=True):
            traced[index][axis] = number  # type: ignore[call-overload]
        return _Template(self._outline([tuple(shape) for shape in traced]), trace, varying)

    def _planned(self, shapes: Sequence[Shape]) -> Program:
        outline = self._outline(shapes)
        return Program(outline, outline.numbers, outline.values)

    def _outline(self, shapes: Sequence[Shape]) -> Outline:
        planner = Planner(self._shared, self._segment, shapes, self._values)
        planner.plan()
        outline = Outline(planner)
        try:
            self._shared.weights.finish()
        except MemoryError as error:
            raise ExecutionError("run/memory", f"there is not enough memory for packed weights: {error}") from error
        return outline


def _varying(segment: Segment, shapes: Sequence[Shape]) -> list[tuple[int, int]]:
    """The dims of inputs, as input and axis, that may be others in another run."""
    found = []
    for index, (value, shape) in enumerate(zip(segment.inputs, shapes, strict=True)):
        declared = value.type.shape if isinstance(value.type, TensorType) else None
        for axis, size in enumerate(shape):
            if declared is None or len(declared) != len(shape) or declared[axis] != size:
                found.append((index, axis))
    return found


class _Template:
    """An outline whose numbers follow from the sizes of the dims `varying`."""

    def __init__(self, outline: Outline, trace: Trace, varying: Sequence[tuple[int, int]]) -> None:
        self._outline, self.varying = outline, varying
        numbers, sizes = outline.numbers, [number.value for number in trace.inputs]
        self._varying = [place for place, number in enumerate(numbers) if isinstance(number, Number)]
        wanted = [number for number in numbers if isinstance(number, Number)]
        values = [trace.place(value) for value in outline.values]
        self._recipe = Recipe(trace, [*(number.place for number in wanted), *values])
        self._numbers = np.array([0 if isinstance(number, Number) else number for number in numbers], np.int64)
        self._numbers[self._varying] = [number.value for number in wanted]
        self.first = Program(outline, self._numbers, [trace.values[place] for place in values], sizes)

    def program(self, sizes: Sequence[int]) -> Program | None:
        """The plan for inputs of these sizes; None if it would be another one."""
        found = self.numbers(sizes)
        return None if found is None else Program(self._outline, *found, sizes)

    def numbers(self, sizes: Sequence[int]) -> tuple[np.ndarray, list[Any]] | None:
        """The outline's numbers and values for these sizes; None if the plan would be another one."""
        try:
            found = self._recipe.follow(sizes)
        except (ArithmeticError, IndexError, ValueError):  # planning anew says what is wrong, and where
            return None
        if found is None:
            return None
        numbers = self._numbers.copy()
        numbers[self._varying] = found[: len(self._varying)]
        return numbers, found[len(self._varying) :]
