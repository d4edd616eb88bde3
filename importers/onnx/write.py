"""Write a module as an ONNX model: to a file, to bytes, or as a ModelProto."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypedDict, Unpack

import onnx
import onnx.helper
from onnx import FunctionProto, ModelProto

from ...graph import dtypes
from ...graph.data import TensorData
from ...graph.diagnostics import DiagnosticLog, ExportError, UsageError, require
from ...graph.module import Function, Module
from ...graph.paths import check_target
from .check import newest_opset, newest_opsets
from .facts import write_facts
from .forms import Forms
from .legalize import Tidy, legalized
from .node_counts import count_in_functions, count_operators
from .outline import outlined, share_functions
from .read import SCALAR_FACTS
from .stream import WrittenModel, encoded_size, write_bytes, write_model
from .write_graph import BodyWriter, WriteContext
from .write_tensors import TensorWriter

TARGETS = ("onnx", "onnxruntime")
# Where the default domain is used and the model names no version of it.
DEFAULT_OPSET = 21
# The IR version that introduced an element type (onnx.proto, "IR VERSION").
_IR_OF_DTYPE: dict[dtypes.DType, int] = {
    dtypes.bf16: 4,
    dtypes.f8e4m3fn: 9, dtypes.f8e4m3fnuz: 9, dtypes.f8e5m2: 9, dtypes.f8e5m2fnuz: 9,
    dtypes.u4: 10, dtypes.i4: 10, dtypes.f4e2m1: 11, dtypes.f8e8m0: 12, dtypes.u2: 13, dtypes.i2: 13,
    dtypes.f6e2m3: 14, dtypes.f6e3m2: 14,
}  # fmt: skip


def save(
    module: Module,
    path: str | os.PathLike[str],
    opset: int | None = None,
    target: str = "onnx",
    keep_fused: bool = False,
    with_shapes: bool = False,
    external: bool | None = None,
    functions: bool = False,
    log: DiagnosticLog | None = None,
    tidy: Tidy | None = None,
) -> WrittenModel:
    """Write `module` to `path`; see `tilewright.save` for the options.

    `tidy` is run on a copy of the module in which operators that are written as their parts are these parts, if there
    are any.
    """
    require("path", path, (str, os.PathLike), "the name of a file")
    check_target(path)
    options = WriteOptions(
        opset=opset, target=target, keep_fused=keep_fused, with_shapes=with_shapes, functions=functions, log=log,
        tidy=tidy,
    )  # fmt: skip
    proto, sources = _build(module, **options)
    written = write_model(path, proto, sources, external=external)
    in_functions = count_in_functions(proto).total()
    return replace(written, operators=count_operators(proto), in_functions=in_functions)


class WriteOptions(TypedDict, total=False):
    """How to write a module; `tilewright.save` says what each option does."""

    opset: int | None
    target: str
    keep_fused: bool
    with_shapes: bool
    functions: bool
    log: DiagnosticLog | None
    tidy: Tidy | None


class WrittenContents(NamedTuple):
    """What a file would hold: its bytes with all weights inside, and its nodes by operator (see `node_counts`)."""

    nbytes: int
    operators: Counter[str]


def to_bytes(module: Module, **options: Unpack[WriteOptions]) -> bytes:
    """The encoded model with all weights inside; options as for `save`. Raises ExportError above 2 GiB."""
    return write_bytes(*_build(module, **options))


def to_proto(module: Module, **options: Unpack[WriteOptions]) -> ModelProto:
    """The model as a message, with a copy of all weights inside; options as for `save`."""
    return _build(module, inline=True, **options)[0]


def written_contents(module: Module, **options: Unpack[WriteOptions]) -> WrittenContents:
    """What `save` would write with these options; nothing is written, and no weight is read."""
    proto, sources = _build(module, **options)
    return WrittenContents(encoded_size(proto, sources), count_operators(proto))


def _build(
    module: Module,
    opset: int | None = None,
    target: str = "onnx",
    keep_fused: bool = False,
    with_shapes: bool = False,
    functions: bool = False,
    log: DiagnosticLog | None = None,
    tidy: Tidy | None = None,
    inline: bool = False,
) -> tuple[ModelProto, list[TensorData]]:
    """The model as a message and the weights that its markers stand for; `inline` puts the weights into the message."""
    if not isinstance(module, Module):
        raise UsageError(
            "usage/module",
            f"only a Module can be written, not {type(module).__name__}",
            notes=["`load` gives one, and so do the `module` of a report of `optimize` and the `build()` of a Builder"],
        )
    if opset is not None:
        require("opset", opset, int, "the version of an opset")
    opsets = dict(module.opsets) if opset is None else {**module.opsets, "": opset}
    _check_request(module, opsets, target)
    tensors = TensorWriter(inline)
    findings = DiagnosticLog()
    forms_for = partial(_forms, opset, _allowed_domains(module, target, keep_fused), keep_fused, functions)
    if functions:
        module = outlined(module, forms_for(module, module.main), target == "onnxruntime" or keep_fused)
    module = legalized(module, forms_for, findings, tidy)
    if functions and not with_shapes:
        share_functions(module)
    context = WriteContext(
        findings, tensors, module.symbols,
        calls=_calls(module),
        ir_version=_ir_version(module, opsets, opset is not None),
        with_shapes=with_shapes,
    )  # fmt: skip
    proto = ModelProto(ir_version=context.ir_version)
    # A model without standard operators may import no version of them; passes may have added some.
    main = BodyWriter(context, module.main, _opsets_of(module, module.main, opset))
    main.main(proto.graph)
    for function in module.functions.values():
        proto.functions.append(_function(context, function, _opsets_of(module, function, opset)))
    findings.raise_errors(ExportError)
    if log is not None:
        log.diagnostics.extend(findings.diagnostics)
    facts = module.metadata
    complete = _complete(opsets, main.used_domains)
    if proto.ir_version >= 3 or complete != {"": 1}:
        _add_opsets(proto.opset_import, complete, facts)
    for name in SCALAR_FACTS:
        if name in facts:
            setattr(proto, name, facts[name])
    write_facts(proto, facts)
    proto.ir_version = max(proto.ir_version, _ir_of_content(proto, tensors.dtypes))
    return proto, tensors.sources


def _forms(
    opset: int | None, allowed: frozenset[str], keep_fused: bool, functions: bool, module: Module, function: Function
) -> Forms:
    """What decides how the operations of `function` are written, if the file is to have `opset`."""
    return Forms(_opsets_of(module, function, opset), allowed, _calls(module), module.symbols, keep_fused, functions)


def _opsets_of(module: Module, function: Function, opset: int | None) -> dict[str, int]:
    """The versions at which a function is written: ONNX wants functions and model to agree on one that is given."""
    opsets = {"": DEFAULT_OPSET, **(module.opsets if function is module.main else function.opsets)}
    if opset is not None and (function is module.main or "" in function.opsets):
        opsets[""] = opset
    return opsets


def _calls(module: Module) -> frozenset[tuple[str, str]]:
    return frozenset((key.domain, key.name) for key in module.functions)


def _check_request(module: Module, opsets: Mapping[str, int], target: str) -> None:
    if target not in TARGETS:
        raise UsageError("usage/target", f"there is no target {target!r}", notes=[f"there are {', '.join(TARGETS)}"])
    if module.level != "onnx":
        raise ExportError(
            "export/level", f"the module is at the level {module.level!r}; only the level 'onnx' can be written"
        )
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= opsets.get("", 1) <= newest:
        raise UsageError("usage/opset", f"there is no opset {opsets['']}; ONNX {onnx.__version__} has 1 to {newest}")


def _allowed_domains(module: Module, target: str, keep_fused: bool) -> frozenset[str]:
    allowed = {*newest_opsets(), *module.opsets}
    if target == "onnxruntime":
        allowed.add("com.microsoft")
    if keep_fused:
        allowed.update(op.domain for op in module.walk())
    return frozenset(allowed)


def _ir_version(module: Module, opsets: Mapping[str, int], changed: bool) -> int:
    """The file's IR version, raised if an opset that was asked for needs it; for a new model the least one."""
    kept = module.metadata.get("ir_version")
    if kept is not None and not changed:
        return int(kept)
    standard = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    least = onnx.helper.find_min_ir_version_for(standard, ignore_unknown=True)
    # Older versions list every initializer as an input; nobody wants that in a new model.
    return max(int(kept), least) if kept is not None else max(least, 4)


def _ir_of_content(proto: ModelProto, written: Iterable[dtypes.DType]) -> int:
    needed = max((_IR_OF_DTYPE.get(dtype, 1) for dtype in written), default=1)
    if proto.functions:
        needed = max(needed, 8)
    if any(function.overload for function in proto.functions):
        needed = max(needed, 10)
    return needed


def _complete(opsets: Mapping[str, int], used: Iterable[str]) -> dict[str, int]:
    """`opsets`, with a version for every domain that came into use."""
    complete = dict(opsets)
    for domain in used:
        if domain not in complete:
            complete[domain] = DEFAULT_OPSET if domain == "" else newest_opset(domain) or 1
    return complete


def _add_opsets(imports: Any, opsets: Mapping[str, int], facts: Mapping[str, Any]) -> None:
    for domain, version in opsets.items():
        item = imports.add(version=version)
        if domain or "default_domain" in facts:
            item.domain = domain or facts["default_domain"]


def _function(context: WriteContext, function: Function, opsets: Mapping[str, int]) -> FunctionProto:
    proto = FunctionProto(name=function.key.name)
    if function.key.domain:
        proto.domain = function.key.domain
    if function.key.overload:
        proto.overload = function.key.overload
    writer = BodyWriter(context, function, opsets)
    writer.function_body(proto)
    infos = function.metadata.get("attribute_info", {})
    for name, value in function.attributes.items():
        if value is Function.REQUIRED:
            proto.attribute.append(name)
        else:
            proto.attribute_proto.append(writer.attribute(name, value, infos.get(name, {})))
    own = {domain: version for domain, version in opsets.items() if domain in function.opsets}
    _add_opsets(proto.opset_import, _complete(own, writer.used_domains), function.metadata)
    write_facts(proto, function.metadata)
    return proto
