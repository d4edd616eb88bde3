"""Fused operators as model-local functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.reference
import pytest

import tilewright
from tilewright import Builder, Module, f32
from tilewright.importers.onnx import to_proto

RANDOM = np.random.default_rng(5)


def random(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def made(build: Callable[[Builder, Any], Any], *shape: Any, opset: int = 18) -> Module:
    b = Builder(opset=opset)
    b.output(build(b, b.input("x", f32[shape])), "y")
    return b.build()


def attention(b: Builder, x: Any) -> Any:
    mask = np.where(np.tri(4) > 0, 0, -np.inf).astype(np.float32)
    return b.attention(x, b.neg(x), x, mask, q_num_heads=2, kv_num_heads=2, masking="plain")


FORMS: dict[str, Callable[[Builder, Any], Any]] = {
    "Gelu": lambda b, x: b.gelu(x),
    "Swish": lambda b, x: b.swish(x, alpha=1.5),
    "SwiGLU": lambda b, x: b.swiglu(x, b.neg(x)),
    "RMSNormalization": lambda b, x: b.rms_normalization(x, random(8)),
    # ONNX Runtime's, in the standard's domain.
    "SimplifiedLayerNormalization": lambda b, x: b.simplified_layer_normalization(x, random(8)),
    "Attention": attention,
    "RotaryEmbedding": lambda b, x: b.rotary_embedding(x, random(2, 4, 2), random(2, 4, 2), num_heads=2),
    "BiasGelu": lambda b, x: b.create("com.microsoft.BiasGelu", x, random(8)),
    "SkipLayerNormalization": lambda b, x: b.create("com.microsoft.SkipLayerNormalization", x, b.neg(x), random(8)),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_fused_operator_is_a_call(name: str) -> None:
    module = made(FORMS[name], 2, 4, 8)
    before = str(module)
    proto = to_proto(module, functions=True)
    assert str(module) == before
    onnx.checker.check_model(proto, full_check=True)
    calls = [node for node in proto.graph.node if node.domain == "tilewright"]
    assert [node.op_type for node in calls] == [name]
    (function,) = proto.functions
    assert (function.domain, function.name) == ("tilewright", name)
    assert {node.domain for node in function.node} == {""}
    assert proto.ir_version >= 8
    x = random(2, 4, 8)
    (wanted,) = tilewright.compile(module, "reference").run({"x": x}).values()
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=1e-5, atol=1e-6)
    (got,) = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_equal_calls_share_a_function_and_others_do_not() -> None:
    def build(b: Builder, x: Any) -> Any:
        wide = b.concat(x, x, axis=0)
        return b.gelu(
            b.concat(b.gelu(b.gelu(x)), b.gelu(x, approximate="tanh"), b.slice(b.gelu(wide), [0], [2]), axis=0)
        )

    proto = to_proto(made(build, 2, 8), functions=True)
    assert [f.name for f in proto.functions] == ["Gelu", "Gelu_2"]
    # Other shapes do not change the body, the approximation does.
    assert [n.op_type for n in proto.graph.node if n.domain] == ["Gelu", "Gelu", "Gelu_2", "Gelu", "Gelu"]


def test_bodies_that_hold_sizes_are_not_shared() -> None:
    def build(b: Builder, x: Any) -> Any:
        caches = [random(2, 4, 2), random(2, 4, 2)]
        turned = b.rotary_embedding(b.rotary_embedding(x, *caches, num_heads=2), *caches, num_heads=2)
        return b.add(turned, b.rotary_embedding(x, random(2, 4, 4), random(2, 4, 4), num_heads=1))

    proto = to_proto(made(build, 2, 4, 8), functions=True)
    assert [f.name for f in proto.functions] == ["RotaryEmbedding", "RotaryEmbedding_2"]


def test_what_the_opset_has_is_no_function() -> None:
    for name, opset in (("Gelu", 20), ("RMSNormalization", 23)):
        proto = to_proto(made(FORMS[name], 2, 4, 8, opset=opset), functions=True)
        assert not proto.functions
        assert [node.op_type for node in proto.graph.node] == [name]


def test_keep_fused_and_the_target_come_first() -> None:
    swish = made(FORMS["Swish"], 2, 8, opset=24)
    assert [f.name for f in to_proto(swish, functions=True).functions] == ["Swish"]
    assert not to_proto(swish, functions=True, keep_fused=True).functions
    skip = made(FORMS["SkipLayerNormalization"], 2, 8)
    assert not to_proto(skip, functions=True, target="onnxruntime").functions


def test_operators_that_are_not_fused_are_written_as_their_parts() -> None:
    proto = to_proto(made(lambda b, x: b.group_normalization(x, random(4), random(4), num_groups=2), 1, 4, 8), opset=13)
    assert not proto.functions
    proto = to_proto(made(lambda b, x: b.cast_like(x, np.float64(1)), 2), opset=13, functions=True)
    assert not proto.functions


def test_inside_a_branch() -> None:
    b = Builder(opset=18)
    x, c = b.input("x", f32[2, 8]), b.input("c", tilewright.bool_[()])
    b.output(b.if_(c, lambda: b.gelu(x), lambda: b.neg(x)), "y")
    proto = to_proto(b.build(), functions=True)
    onnx.checker.check_model(proto, full_check=True)
    assert [f.name for f in proto.functions] == ["Gelu"]


def test_the_file_is_read_back_and_recomposed(tmp_path: Any) -> None:
    module = made(FORMS["Gelu"], 2, 8)
    tilewright.save(module, tmp_path / "m.onnx", functions=True)
    again = tilewright.load(tmp_path / "m.onnx")
    assert [key.name for key in again.functions] == ["Gelu"]
    tilewright.PassManager.parse("inline-functions,recompose-gelu,dce").run(again)
    assert [op.name for op in again.main.walk() if op.name not in ("const", "return")] == ["gelu"]
