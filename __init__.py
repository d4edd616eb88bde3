"""Tilewright: read a neural network, see it, rewrite it, prove that it still agrees, and compile it.

    import tilewright

    model = tilewright.load("model.onnx")
    print(model)                                     # readable SSA text; tilewright.parse reads it back
    report = tilewright.optimize(model)              # in place; the report says what changed
    assert tilewright.parity("model.onnx", model).passed
    tilewright.save(model, "better.onnx")

Names are resolved when they are first used, so that `import tilewright` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import train
    from .api import (
        compile,  # noqa: A004
        gradient,
        hvp,
        inspect,
        jvp,
        load_executable,
        optimize,
        parity,
        save,
        to_bytes,
        to_proto,
        vjp,
    )
    from .backends import onnx_backend as backend
    from .backends.session import InferenceSession
    from .graph import nn
    from .graph.diagnostics import TilewrightError
    from .graph.dtypes import (
        bf16,
        bool_,
        c64,
        c128,
        f8e4m3fn,
        f8e5m2,
        f16,
        f32,
        f64,
        i4,
        i8,
        i16,
        i32,
        i64,
        string,
        u4,
        u8,
        u16,
        u32,
        u64,
    )  # fmt: skip
    from .graph.model_builder import Builder
    from .graph.module import Function, Module
    from .graph.opdef import OpDefinition, Trait, op
    from .graph.parser import parse
    from .importers.onnx import load
    from .passes.manager import Pass, PassManager

__version__ = "0.1.0.dev0"

# Public name -> (module, attribute); None for the module itself.
_PUBLIC: dict[str, tuple[str, str | None]] = {
    "Builder": (".graph.model_builder", "Builder"),
    "Function": (".graph.module", "Function"),
    "InferenceSession": (".backends.session", "InferenceSession"),
    "Module": (".graph.module", "Module"),
    "OpDefinition": (".graph.opdef", "OpDefinition"),
    "Pass": (".passes.manager", "Pass"),
    "PassManager": (".passes.manager", "PassManager"),
    "TilewrightError": (".graph.diagnostics", "TilewrightError"),
    "Trait": (".graph.opdef", "Trait"),
    "backend": (".backends.onnx_backend", None),
    "compile": (".api", "compile"),
    "gradient": (".api", "gradient"),
    "hvp": (".api", "hvp"),
    "inspect": (".api", "inspect"),
    "jvp": (".api", "jvp"),
    "load": (".importers.onnx", "load"),
    "load_executable": (".api", "load_executable"),
    "nn": (".graph.nn", None),
    "op": (".graph.opdef", "op"),
    "optimize": (".api", "optimize"),
    "parity": (".api", "parity"),
    "parse": (".graph.parser", "parse"),
    "save": (".api", "save"),
    "to_bytes": (".api", "to_bytes"),
    "to_proto": (".api", "to_proto"),
    "train": (".train", None),
    "vjp": (".api", "vjp"),
}

# Written out, not put together: type checkers take public names from a plain list. Names that `_PUBLIC` does not
# have are element types, such as `tilewright.f32`, for building models.
__all__ = [
    "Builder",
    "Function",
    "InferenceSession",
    "Module",
    "OpDefinition",
    "Pass",
    "PassManager",
    "TilewrightError",
    "Trait",
    "__version__",
    "backend",
    "bf16",
    "bool_",
    "c64",
    "c128",
    "compile",
    "f8e4m3fn",
    "f8e5m2",
    "f16",
    "f32",
    "f64",
    "gradient",
    "hvp",
    "i4",
    "i8",
    "i16",
    "i32",
    "i64",
    "inspect",
    "jvp",
    "load",
    "load_executable",
    "nn",
    "op",
    "optimize",
    "parity",
    "parse",
    "save",
    "string",
    "to_bytes",
    "to_proto",
    "train",
    "u4",
    "u8",
    "u16",
    "u32",
    "u64",
    "vjp",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _PUBLIC:
        module, attribute = _PUBLIC[name]
        loaded = import_module(module, __name__)
        value = loaded if attribute is None else getattr(loaded, attribute)
    elif name in __all__:
        value = getattr(import_module(".graph.dtypes", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
