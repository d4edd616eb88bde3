"""What a compiled model is, whatever runs it: named arrays go in, named arrays come out."""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..graph.diagnostics import Diagnostic, ExecutionError, UsageError, require
from ..graph.evaluation import describe
from ..graph.forks import hold_while_forking
from ..graph.module import Module
from .bound_outputs import check_bound, places, write_results
from .signature import Port, Signature

# Counters are added to under this lock.
_counting = threading.Lock()
hold_while_forking(_counting)


class ModelWarning(UserWarning):
    """A model ran, but something that its file claims, such as a declared shape, is not so."""


class Executable(ABC):
    """A model ready to run. `inputs` and `outputs` describe its interface, in order.

    Run-time values are numpy arrays (strings: object arrays of str; bf16, 8-bit and 4-bit floats and integers: the
    types of `ml_dtypes`), lists for sequences, dicts for maps, None for an absent optional.
    """

    target: ClassVar[str]

    def __init__(self, module: Module) -> None:
        self.module = module
        self.signature = Signature(module.main)
        self._copies = {"inputs": 0, "outputs": 0}

    @property
    def inputs(self) -> tuple[Port, ...]:
        return self.signature.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        return self.signature.outputs

    @property
    def copies(self) -> dict[str, int]:
        """How many arrays of callers had to be copied so far: `inputs`, and `outputs` that `run_into` was given."""
        return {**self._copies, "inputs": self._copies["inputs"] + self.signature.copied}

    def run(self, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None) -> dict[str, Any]:
        """Run the model on `{input name: array}` and return `{output name: array}`.

        `outputs` names the ones wanted (default: all); only what they need is computed. An input with a default may be
        left out. Raises ExecutionError if the inputs do not fit or an operation fails, UsageError for an unknown
        output. Warns with ModelWarning where a result contradicts a shape that the model declares.
        """
        if type(feeds) is not dict:  # the usual case, for which nothing need be looked up
            require("feeds", feeds, Mapping, "a dict of arrays by input name")
        chosen = self.signature.choose(outputs)
        results = self._results(feeds, chosen)
        return dict(zip(self.signature.output_names if outputs is None else outputs, results, strict=True))

    def run_into(self, feeds: Mapping[str, Any], outputs: Mapping[str, np.ndarray | None]) -> dict[str, Any]:
        """Run the model and write its results into `{output name: array}`; None stands for a fresh array.

        Returns the same names with their arrays; only what they need is computed. An array must have the dtype of its
        output and the shape of the result, be writeable and share no memory with another one. The cpu target computes
        where the array is, if that is row-major and apart from all inputs; into any other array, and with the
        reference target, the result is copied, which `report()["copies"]` counts.

        Raises what `run` does, UsageError for an array that cannot be written into, and ExecutionError for one of
        another dtype or shape. After an error from the run itself the elements of the arrays are unspecified.
        """
        for name, given in (("feeds", feeds), ("outputs", outputs)):
            if type(given) is not dict:
                require(name, given, Mapping, "a dict of arrays by name")
        chosen, arrays = self.signature.choose(list(outputs)), list(outputs.values())
        bound = [(self.outputs[index], array) for index, array in zip(chosen, arrays, strict=True) if array is not None]
        if not bound:
            return dict(zip(outputs, self._results(feeds, chosen), strict=True))
        check_bound(bound)
        results = dict(zip(outputs, self._results(feeds, chosen, arrays), strict=True))
        copied = write_results(bound, [results[port.name] for port, _ in bound])
        if copied:
            self._count_copies("outputs", copied)
        return {name: results[name] if array is None else array for name, array in outputs.items()}

    def _results(
        self, feeds: Mapping[str, Any], chosen: Sequence[int], bound: Sequence[np.ndarray | None] = ()
    ) -> list[Any]:
        """The outputs at the positions `chosen`; those that can be are made in the arrays `bound`."""
        arguments, dims = self.signature.bind(feeds)
        try:
            results, findings = self._execute(arguments, dims, chosen, places(bound, arguments) if bound else ())
        except ExecutionError as error:  # it names a node, far from what was given
            error.with_note(_given(feeds))
            raise
        except MemoryError as error:  # for a copy of an input, say, of which a view alone took no memory
            message = f"there is not enough memory for a run: {error}"
            raise ExecutionError("run/memory", message, notes=[_given(feeds)]) from error
        for finding in findings:
            warnings.warn(finding.render(), ModelWarning, stacklevel=3)
        return results

    def _count_copies(self, what: str, count: int = 1) -> None:
        with _counting:
            self._copies[what] += count

    def __call__(self, *arrays: Any) -> Any:
        """Run the model on its inputs in order; one output comes back as it is, several as a tuple."""
        if len(arrays) > len(self.inputs):
            raise UsageError("run/too-many-inputs", f"the model has {len(self.inputs)} inputs, got {len(arrays)}")
        results = tuple(self.run(dict(zip((port.name for port in self.inputs), arrays, strict=False))).values())
        return results[0] if len(results) == 1 else results

    @abstractmethod
    def report(self) -> dict[str, Any]:
        """Facts about what was compiled: `target`, `copies`, and what the target has to say of itself."""

    @abstractmethod
    def _execute(
        self,
        arguments: Sequence[Any],
        dims: Mapping[Any, int],
        outputs: Sequence[int],
        places: Sequence[np.ndarray | None] = (),
    ) -> tuple[list[Any], Sequence[Diagnostic]]:
        """The outputs at these positions for checked arguments, and what is to be warned of.

        `dims` gives the sizes of the symbolic dims of the inputs. `places` has, if anything, a row-major array or None
        for each output; one that has the result's shape may be filled and returned as the output.
        """

    def __reduce__(self) -> Any:
        raise UsageError(
            "run/pickle", f"a {type(self).__name__} cannot be copied or pickled",
            notes=["compile the model where it runs; `save` of a cpu executable writes it to a file"],
        )  # fmt: skip

    def __repr__(self) -> str:
        inputs, outputs = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"<{type(self).__name__} ({inputs}) -> ({outputs})>"


def _given(feeds: Mapping[str, Any]) -> str:
    given = ", ".join(f"{name} {describe(value)}" for name, value in feeds.items())
    return f"the model was given {given or 'no inputs'}"


def owned(results: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """`results`; those that cannot be written to without changing an argument, a constant or another result are copied,
    also inside of sequences."""
    taken = {id(_memory(array)) for array in _arrays(arguments)}

    def own(result: Any) -> Any:
        if isinstance(result, list):
            return [own(item) for item in result]
        if not isinstance(result, np.ndarray):
            return result
        memory = _memory(result)
        # A view of all of a buffer is as good as an array of its own: see cpu/output_memory.
        is_whole = result.flags.owndata or (isinstance(memory, memoryview) and memory.nbytes == result.nbytes)
        if not is_whole or not result.flags.writeable or id(memory) in taken:
            return result.copy()
        taken.add(id(memory))
        return result

    return [own(result) for result in results]


def _arrays(values: Sequence[Any]) -> Iterator[np.ndarray]:
    for value in values:
        if isinstance(value, list):
            yield from _arrays(value)
        elif isinstance(value, np.ndarray):
            yield value


def _memory(array: np.ndarray) -> Any:
    """What has an array's elements: the array that it is a view of, or what that was made of."""
    base: Any = array.base
    while isinstance(base, np.ndarray):
        array, base = base, base.base
    return array if base is None else base
