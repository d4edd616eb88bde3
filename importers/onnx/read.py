"""Read a model: find its bytes, take the weights out, read functions and the main graph, judge what was found."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto

from ...graph.collector import paused_collector
from ...graph.core import Block
from ...graph.data import MappedFile
from ...graph.diagnostics import DiagnosticLog, ModelError, UsageError
from ...graph.dims import FreshSymbols
from ...graph.module import Function, FunctionKey, Module
from ...graph.onnx_values import attribute_value
from ...graph.paths import check_source
from . import wire
from .check import newest_opset
from .context import ImportLog, ReadContext
from .declared import properties
from .external import ExternalFiles
from .order import graphs_of, is_deeper_than
from .read_graph import BodyReader
from .read_node import attribute_info
from .read_tensors import TensorReader
from .residual import Modelled, check_text, has_unknown_fields

_MODEL_FIELDS = (
    "ir_version", "opset_import", "producer_name", "producer_version", "domain", "model_version", "doc_string", "graph",
    "metadata_props", "functions",
)  # fmt: skip
_MODEL = Modelled(ModelProto, _MODEL_FIELDS)
_FUNCTION = Modelled(
    FunctionProto,
    (
        "name", "input", "output", "attribute", "attribute_proto", "node", "doc_string", "opset_import", "domain",
        "overload", "value_info", "metadata_props",
    ),
)  # fmt: skip
# Subgraphs in subgraphs; protobuf itself reads about thirty levels.
MAX_DEPTH = 60
# Facts of a model that are kept under their own names in `Module.metadata`.
SCALAR_FACTS = ("producer_name", "producer_version", "domain", "model_version", "doc_string")


class ModelWarning(UserWarning):
    """What `load` says about a model that is readable but not quite right, if it is given no log."""


@paused_collector()
def load(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | ModelProto,
    *,
    folder: str | os.PathLike[str] | None = None,
    log: DiagnosticLog | None = None,
) -> Module:
    """Read an ONNX model.

    Args:
        source: a path, the bytes of a file, or a ModelProto (which must not change while the module lives).
        folder: where a model that is not given by its path has its external data.
        log: receives warnings (a wrong declared shape, unsorted nodes); without one they become a `ModelWarning`.

    Weights are not read: the file is mapped, and must not be overwritten in place while the module is in use
    (`save` replaces a file, which is safe).

    Raises ModelError with everything that is wrong with the model, UsageError for another kind of source.
    """
    collected = log if log is not None else DiagnosticLog()
    seen = len(collected.diagnostics)
    try:
        model, tensors = _open(source, folder)
        module = _read_model(model, tensors, collected)
    except ModelError as error:
        if isinstance(source, str | os.PathLike) and not error.code.startswith("file/"):
            error.with_note(f"the file is {os.fspath(source)}")
        raise
    found = [item.render() for item in collected.diagnostics[seen:] if item.severity == "warning"]
    if log is None and found:
        shown = [*found[:10], *([f"... and {len(found) - 10} more"] if len(found) > 10 else [])]
        warnings.warn("\n".join(shown), ModelWarning, stacklevel=3)
    return module


def _open(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | ModelProto,
    folder: str | os.PathLike[str] | None,
) -> tuple[ModelProto, TensorReader]:
    if isinstance(source, ModelProto):
        return source, TensorReader(ExternalFiles(folder))
    if isinstance(source, bytes | bytearray | memoryview):
        model, payloads = wire.read_model(source)
        return model, TensorReader(ExternalFiles(folder), payloads, source)
    if not isinstance(source, str | os.PathLike):
        raise UsageError("usage/model-source", f"a model is a path, bytes or a ModelProto, not {type(source).__name__}")
    path = Path(source)
    _check_path(path)
    file = MappedFile.open(path)
    model, payloads = wire.read_model(file.view)
    external = ExternalFiles.beside(path) if folder is None else ExternalFiles(folder)
    return model, TensorReader(external, payloads, file.view, file)


def _check_path(path: Path) -> None:
    """Raise ModelError, with a hint, if no file can be read at `path`."""
    if path.is_dir():
        models = sorted(item.name for item in path.glob("*.onnx"))[:5]
        raise ModelError(
            "file/folder",
            f"{path} is a folder, not a model file",
            notes=[f"it holds {', '.join(models)}"] if models else [],
        )
    check_source(path, ModelError)
    if path.suffix == ".twx":
        raise ModelError(
            "file/executable",
            f"{path} is an executable of Tilewright, not a model",
            notes=["tilewright.load_executable(path) loads it, `tilewright run` runs it"],
        )
    if not path.is_file():
        raise ModelError(
            "file/kind",
            f"{path} is a pipe or a device, which cannot be mapped into memory",
            notes=["write the model to a file first"],
        )


def _read_model(model: ModelProto, tensors: TensorReader, log: DiagnosticLog) -> Module:
    if is_deeper_than([model.graph, *_bodies(model)], MAX_DEPTH):
        raise ModelError("onnx/too-deep", f"subgraphs are nested deeper than {MAX_DEPTH} levels")
    check_text(model)
    before = len(log.diagnostics)
    placed = ImportLog(log)
    opsets = _opsets(model.opset_import, "the model", log)
    if not model.opset_import and model.ir_version < 3:
        opsets = {"": 1}  # opset imports came with IR version 3
    _check_versions(model, log)
    functions = {FunctionKey(item.domain, item.name, item.overload): item for item in model.functions}
    context = ReadContext(
        placed, tensors, FreshSymbols(), model.ir_version, has_unknown_fields(model), functions
    )  # fmt: skip
    _check_functions(model, context)
    block, defaults = BodyReader(context, opsets).main(model.graph)
    main = Function(FunctionKey("", "main"), block)
    main.defaults.update(defaults)
    module = Module(main, opsets)
    module.symbols = context.symbols
    for key, proto in functions.items():
        placed.push(f"the function {key}")
        module.functions[key] = _read_function(key, proto, context)
        placed.pop()
    _keep_model_facts(module, model, context)
    errors = log.errors_since(before)
    if errors:
        raise ModelError.collect(errors)
    return module


def _bodies(model: ModelProto) -> Iterator[GraphProto]:
    """Function bodies, as graphs that hold the nodes that have subgraphs."""
    for function in model.functions:
        for node in function.node:
            yield from graphs_of(node)


def _check_functions(model: ModelProto, context: ReadContext) -> None:
    """Names are unique, and no function calls itself, by whatever detour (ONNX IR specification, "Functions")."""
    if len(context.functions) < len(model.functions):
        keys = [FunctionKey(item.domain, item.name, item.overload) for item in model.functions]
        twice = next(key for key in keys if keys.count(key) > 1)
        context.log.error("onnx/duplicate-function", f"the function {twice} is defined twice")
    called = {key: list(_calls(proto.node, context)) for key, proto in context.functions.items()}
    finished: set[FunctionKey] = set()
    for root in called:
        path, pending = [root], [iter(called[root])]
        while pending:
            following = next((key for key in pending[-1] if key not in finished), None)
            if following is None:
                finished.add(path.pop())
                pending.pop()
            elif following in path:
                cycle = " calls ".join(str(key) for key in [*path[path.index(following) :], following])
                raise ModelError("onnx/recursive-function", f"a function calls itself: {cycle}")
            else:
                path.append(following)
                pending.append(iter(called[following]))


def _calls(nodes: Iterable[NodeProto], context: ReadContext) -> Iterator[FunctionKey]:
    """The model-local functions that `nodes` call, also from subgraphs."""
    for node in nodes:
        key = FunctionKey(node.domain, node.op_type, node.overload)
        if key in context.functions:
            yield key
        for graph in graphs_of(node):
            yield from _calls(graph.node, context)


def _check_versions(model: ModelProto, log: DiagnosticLog) -> None:
    if not model.ir_version:
        log.error("onnx/ir-version", "the model does not say which IR version it has, so it is no valid ONNX model")
    elif model.ir_version > onnx.IR_VERSION:
        log.error(
            "onnx/ir-version",
            f"the model has IR version {model.ir_version}, the newest known here is {onnx.IR_VERSION}",
            None,
            f"onnx {onnx.__version__} is installed; a newer one may know it",
        )


def _opsets(imports: Iterable[OperatorSetIdProto], whose: str, log: DiagnosticLog) -> dict[str, int]:
    """Domain -> version as imported, in order. "ai.onnx" is the long name of the default domain."""
    opsets: dict[str, int] = {}
    for item in imports:
        domain = "" if item.domain == "ai.onnx" else item.domain
        if opsets.get(domain, item.version) != item.version:
            log.error("onnx/opset-twice", f"{whose} imports {domain or 'ai.onnx'} in two versions")
        newest = newest_opset(domain)
        if newest is not None and item.version > newest:
            log.error(
                "onnx/opset-unknown",
                f"{whose} imports opset {item.version} of {domain or 'ai.onnx'}, the newest known here is {newest}",
                None,
                f"onnx {onnx.__version__} is installed; a newer one may know it",
            )
        elif newest is not None and item.version < 1:
            log.error("onnx/opset-unknown", f"{whose} imports opset {item.version} of {domain or 'ai.onnx'}")
        opsets[domain] = int(item.version)
    return opsets


def _read_function(key: FunctionKey, proto: FunctionProto, context: ReadContext) -> Function:
    opsets = _opsets(proto.opset_import, f"the function {proto.name}", context.log)
    block: Block = BodyReader(context, opsets, typed=False).function(proto)
    function = Function(key, block)
    function.opsets = opsets
    for name in proto.attribute:
        function.attributes[name] = Function.REQUIRED
    for attribute in proto.attribute_proto:
        try:
            value = attribute_value(attribute, context.tensors.tensor, context.type_of)
        except ModelError as error:
            context.report(error)
            continue
        function.attributes[attribute.name] = value
        info = attribute_info(attribute, AttributeProto.AttributeType.Name(attribute.type).lower(), value)
        if info:
            function.metadata.setdefault("attribute_info", {})[attribute.name] = info
    if proto.doc_string:
        function.metadata["doc_string"] = proto.doc_string
    if proto.metadata_props:
        function.metadata["metadata_props"] = properties(proto.metadata_props)
    rest = _FUNCTION.leftover(proto, context.look_for_unknown)
    if rest:
        function.metadata["residual"] = rest
    return function


def _keep_model_facts(module: Module, model: ModelProto, context: ReadContext) -> None:
    facts = module.metadata
    facts["ir_version"] = int(model.ir_version)
    for name in SCALAR_FACTS:
        value = getattr(model, name)
        if value:
            facts[name] = value
    if model.metadata_props:
        facts["metadata_props"] = properties(model.metadata_props)
    if any(item.domain == "ai.onnx" for item in model.opset_import):
        facts["default_domain"] = "ai.onnx"
    rest = _MODEL.leftover(model, context.look_for_unknown)
    if rest:
        facts["residual"] = context.tensors.filled(rest, ModelProto)
