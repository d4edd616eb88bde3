"""`InferenceSession`: Tilewright behind the interface of `onnxruntime.InferenceSession`.

Options that mean nothing here are accepted and named in a `SessionWarning`; none is a TypeError.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..graph.diagnostics import UsageError
from ..graph.dims import is_symbol, label_of
from ..graph.module import Module
from ..graph.types import TensorType
from .executable import Executable
from .host_value import HostValue, type_text
from .io_binding import IOBinding, held
from .signature import Port
from .target import compile_module

# ONNX Runtime's provider names that say nothing else than "run it here".
_NEUTRAL_PROVIDERS = frozenset({"CPUExecutionProvider"})


class SessionWarning(UserWarning):
    """An option that ONNX Runtime has was given, and it has no effect here."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output: `shape` holds ints, names of symbolic dims, and None where a dim has no name; it is empty
    for a scalar and for an unknown rank. `type` is in ONNX's words, such as "tensor(float)"."""

    name: str
    shape: list[int | str | None]
    type: str


@dataclass(frozen=True)
class ModelMetadata:
    """What the model file says about itself."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SessionOptions:
    """What a session that was given no options says of them."""

    intra_op_num_threads: int = 0


class InferenceSession:
    """A model ready to run. Differences to ONNX Runtime: errors are `TilewrightError`s, and `target` says what runs it.

    `path_or_bytes` is a file, a serialized model, a ModelProto or a Module. Of `sess_options`,
    `intra_op_num_threads` is used where `threads` is not given. `providers` choose nothing.
    Raises ModelError if the model cannot be read, UsageError for an unknown target.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        target: str = "cpu",
        threads: int | None = None,
        **options: Any,
    ) -> None:
        self._ignored: list[str] = [f"{name}={value!r}" for name, value in options.items()]
        threads = threads or getattr(sess_options, "intra_op_num_threads", 0) or None
        self._note_changed("sess_options", sess_options, {"intra_op_num_threads"})
        self._note_providers(providers or (), provider_options or ())
        self._warn()
        self._options = sess_options
        self._module = _module(path_or_bytes)
        self._executable: Executable = compile_module(self._module, target=target, threads=threads)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, ports)) for ports in (self._executable.inputs, self._executable.outputs))
        return f"<InferenceSession on {self._executable.target} ({inputs}) -> ({outputs})>"

    # ---- running -------------------------------------------------------------------------------------------------

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """The outputs called `output_names` (None or no names: all, in order) for `{input name: array}`.

        Raises ExecutionError if the inputs do not fit or an operation fails, UsageError for an unknown output.
        """
        self._note_changed("run_options", run_options, set())
        self._warn()
        results = self._executable.run(input_feed, output_names or None)
        return [results[name] for name in (output_names or results)]

    def io_binding(self) -> IOBinding:
        """Inputs and outputs to bind, once for many runs."""
        return IOBinding(self._executable)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run the model on what is bound. Raises as `run` does, UsageError for memory that no output fits in."""
        self._note_changed("run_options", run_options, set())
        self._warn()
        iobinding.run()

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[HostValue]:
        """As `run`, for `{input name: OrtValue}` in host memory, which is read where it is; see `IOBinding`."""
        feeds = {name: held(value) for name, value in input_dict_ort_values.items()}
        types = {port.name: port.type for port in self._executable.outputs}
        names = output_names or list(types)
        return [
            HostValue(result, types[name])
            for name, result in zip(names, self.run(names, feeds, run_options), strict=True)
        ]

    # ---- describing ----------------------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that must be given."""
        return [_node_arg(port) for port in self._executable.inputs if port.required]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs that have a default."""
        return [_node_arg(port) for port in self._executable.inputs if not port.required]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(port) for port in self._executable.outputs]

    def get_modelmeta(self) -> ModelMetadata:
        facts, graph = self._module.metadata, self._module.main.block.metadata
        return ModelMetadata(
            producer_name=facts.get("producer_name", ""),
            graph_name=graph.get("name", ""),
            domain=facts.get("domain", ""),
            description=facts.get("doc_string", ""),
            graph_description=graph.get("doc_string", ""),
            version=facts.get("model_version", 0),
            custom_metadata_map=dict(facts.get("metadata_props", {})),
        )

    def get_providers(self) -> list[str]:
        """One name, which says the target."""
        return [f"Tilewright{self._executable.target.capitalize()}ExecutionProvider"]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {name: {} for name in self.get_providers()}

    def get_session_options(self) -> Any:
        """The `sess_options` this session was made with, or the one option that counts here."""
        if self._options is None:
            return SessionOptions(getattr(self._executable, "threads", 0))
        return self._options

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Providers choose nothing: those that would elsewhere are named in a warning."""
        self._note_providers(providers or (), provider_options or ())
        self._warn()

    def enable_fallback(self) -> None:
        """Nothing: there is one provider."""

    def disable_fallback(self) -> None:
        """Nothing: there is one provider."""

    # ---- options without effect ----------------------------------------------------------------------------------

    def _note_providers(self, providers: Sequence[Any], provider_options: Sequence[Mapping[str, Any]]) -> None:
        for index, provider in enumerate(providers):
            name, settings = provider if isinstance(provider, tuple) else (provider, {})
            settings = {**settings, **(provider_options[index] if index < len(provider_options) else {})}
            if name not in _NEUTRAL_PROVIDERS and not str(name).startswith("Tilewright"):
                self._ignored.append(f"provider {name!r}")
            self._ignored += [f"{name} option {key}={value!r}" for key, value in settings.items()]

    def _note_changed(self, what: str, options: Any, used: set[str]) -> None:
        """Note the settings of an options object that differ from those of a fresh one of its class."""
        if options is None:
            return
        if isinstance(options, Mapping):
            self._ignored += [f"{what}[{key!r}]={value!r}" for key, value in options.items() if key not in used]
            return
        kind: Any = type(options)
        for name, default in _defaults(kind).items():
            value = getattr(options, name, default)
            if value != default and name not in used:
                self._ignored.append(f"{what}.{name}={value!r}")

    def _warn(self) -> None:
        if self._ignored:
            warnings.warn(f"without effect here: {', '.join(self._ignored)}", SessionWarning, stacklevel=3)
            self._ignored = []


@functools.cache
def _defaults(kind: Any) -> dict[str, Any]:
    """The settings of a fresh object of a class of options: looked up once, since a run may be given some."""
    fresh, found = kind(), {}
    for name in dir(fresh):
        if name.startswith("_"):
            continue
        with contextlib.suppress(Exception):  # a property that only has a value in some state
            found[name] = getattr(fresh, name)
    return {name: value for name, value in found.items() if not callable(value)}


def _module(source: Any) -> Module:
    if isinstance(source, Module):
        return source
    from ..importers.onnx import load

    if not isinstance(source, str | bytes | bytearray | memoryview | os.PathLike) and not hasattr(source, "graph"):
        raise UsageError(
            "session/source", f"a session is made from a path, bytes or a model, not from {type(source).__name__}"
        )
    return load(source)


def _node_arg(port: Port) -> NodeArg:
    dims: list[int | str | None] = []
    if isinstance(port.type, TensorType):
        for dim in port.type.shape or ():
            unnamed = is_symbol(dim) and label_of(dim).startswith("?")
            dims.append(dim if isinstance(dim, int) else None if unnamed else label_of(dim))
    return NodeArg(port.name, dims, type_text(port.type))
