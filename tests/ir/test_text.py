"""Printing and parsing: exact round trips, what is refused and how, and weights found by their hash."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import random_modules
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.graph import dtypes, opdef
from tilewright.graph.core import Block, Operation
from tilewright.graph.data import ArrayData, MappedData, MappedFile, TensorData, UnresolvedData, from_raw
from tilewright.graph.diagnostics import ModelError, ParseError
from tilewright.graph.equality import first_difference, structural_hash
from tilewright.graph.lexer import tokenize
from tilewright.graph.literals import element_texts, float_of, float_text, tensor_of
from tilewright.graph.location import FileLocation, FusedLocation, NodeLocation
from tilewright.graph.module import Function, FunctionKey, Module
from tilewright.graph.parser import parse
from tilewright.graph.printer import excerpt, print_module, print_operation

MODEL = """\
module onnx opsets={"": 17} <ir_version=8, producer_name="pytorch">

func @main(
  %x: f32[n, 768],
  %m: f32[n, 1] = [[1.0]] : f32[1, 1],
  %c: bool[]
) -> (%y: f32[n'1, 768] <doc_string="the answer">) <name="torch_jit"> {
  %w = const #w0 : f32[768, 768]
  %axes = const [0, -1] : i64[2]
  %0 = matmul %x, %w : f32[n, 768]                                           @"/enc/0/q/MatMul"#7
  %"0" = softmax %0 {axis=-1} : f32[n, 768]                                  @fold("/enc/0/Softmax"#8, "net.py":3)
  %a, _ = dropout %"0", none : f32[n, 768], bool[n, 768] <doc_string="two\\nlines">
  %y = if %c : f32[n, 768]                                                   @"/If"#9
    then_branch() -> (%t: f32[n, 768]) {
      %t = relu %a : f32[n, 768]
      return %t
    }
    else_branch() -> (%t) {
      %t = my.domain.Scale %a {alpha=0.5, mode="up"} : unknown
      return %t
      value_info %t
    }
  return %y
  value_info %x <doc_string="an input">, %a
}

func @my.domain::Scale:fast opsets={"": 18} attributes={alpha, beta=1.0, k=[1, 2]} <a=1>(%x: unknown) -> (%y) {
  %alpha = const $alpha: float : unknown
  %y = mul %x, %alpha : unknown
  return %y
}

weights {
  #w0 : f32[768, 768] sha256="5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
}
"""


def body(*lines: str) -> str:
    """A model with these lines between two values and a return."""
    shown = "".join(f"  {line}\n" for line in lines)
    return (
        'module onnx opsets={"": 17}\n\nfunc @main(%x: f32[2], %c: bool[]) -> (%y: f32[2]) {\n'
        + shown
        + "  return %x\n}\n"
    )


def only_op(line: str) -> Operation:
    op = parse(body(line)).main.block.first
    assert op is not None
    return op


# ---- what is printed is what was read --------------------------------------------------------------------------------


def test_canonical_text_is_a_fixpoint() -> None:
    module = parse(MODEL)
    assert print_module(module) == MODEL
    assert first_difference(module, parse(MODEL)) is None


@pytest.mark.parametrize(
    "line",
    [
        "%a = relu %x : f32[2]",
        "%\"0\" = relu %x : f32[2]",
        "%\"a b\" = relu %x : f32[2]",
        '%"\\n\\u0085\\"" = relu %x : f32[2]',
        "%/enc/0/Add_output_0 = relu %x : f32[2]",
        "%onnx::MatMul_12 = relu %x : f32[2]",
        "%input_1:0 = relu %x : f32[2]",
        '%"a//b" = relu %x : f32[2]',
        "%名前 = relu %x : f32[2]",
        "%x'1 = relu %x : f32[2]",
        "%a, _, %0 = foo.Bar %x, none, none {z=1, a=2} : f32[2], unknown, i64[*]",
        "foo.Effect",
        "foo.Effect %x",
        '"my domain"::"Op" %x',
        '""::"Unknown" %x',
        'call ""::"Relu" %x',
        "%a = com.microsoft.Unheard %x : f32[2]",
        "%a = ai.onnx.ml.Normalizer %x : f32[2]",
        "%a = cast %x {saturate=0, to=1} : f32[2]",
        "foo.Bar {i=-3, f=1.0, t=true, s=\"a\\tb\", b=b\"\\x00a\\\\x5c\", n=none}".replace("\\\\x5c", "\\x5c"),
        "foo.Bar {a=[], b=[1, [2.0, []], [\"x\"]], c=[[1, 2] : i64[2], 1.5 : f16[]]}",
        "foo.Bar {a=nan, b=inf, c=-inf, d=-0.0, e=1e-45f64, f=0.1, g=0.1f64}",
        "foo.Bar {a=$alpha: float, b=$\"odd name\": type_proto}",
        "foo.Bar {a=f32[n, 2], b=sequence<optional<map<i64, string[*]>>>, c=sparse<f32[3]>, d=opaque<\"a\", \"b\">}",
        "foo.Bar {a=scalar<f32>, b=vector<16 x bool>, c=buffer<i8>, d=buffer<f32, stack>}",
        '%a = relu %x : f32["batch size"\'2[1..64], 2*h*n + 1, floordiv(n + 1, 2)]',
        "%a = const 1.5 : f32[]",
        "%a = const [[1, 2], [3, 4]] : i4[2, 2]",
        "%a = const [] : f32[2, 0]",
        "%a = const [nan, inf, -0.0, 0x7fc00001] : f32[4]",
        "%a = const [(1.0, -0.0), (nan, 2.5)] : c64[2]",
        "%a = const [true, false, 0x02] : bool[3]",
        '%a = const ["", "a\\"b", b"\\xff"] : string[3]',
        "%a = const 1 : i64[] : i64[*]",
        '%a = const $value: tensor {extra="x"} : unknown <constant_node="value">',
        '%a = relu %x : f32[2] <overload="fast", legacy={"dims": [1, 2]}, nothing={}>',
    ],
)  # fmt: skip
def test_line_is_a_fixpoint(line: str) -> None:
    assert print_module(parse(body(line))) == body(line)


def test_a_node_without_a_name_is_called_node() -> None:
    assert str(NodeLocation("", 3)) == "node#3"
    assert str(FusedLocation("fold", (NodeLocation("", 3), NodeLocation("node", 4)))) == 'fold(node#3, "node"#4)'


@pytest.mark.parametrize(
    "location",
    [
        NodeLocation("/enc/0/MatMul", 7),
        NodeLocation("", -1),
        FileLocation('C:\\a "b".py', 12),
        FusedLocation("fold-constants", (NodeLocation("a", 1), FileLocation("b.py", 2))),
        FusedLocation("a rule", ()),
        FusedLocation("outer", (FusedLocation("unknown", (NodeLocation("é", 1),)),)),
    ],
)
def test_locations_survive(location: object) -> None:
    module = parse(body("%a = relu %x : f32[2]"))
    module.main.block.first.location = location  # type: ignore[union-attr, assignment]
    assert parse(print_module(module)).main.block.first.location == location  # type: ignore[union-attr]
    assert "@" not in print_module(module, locations=False).split("{\n")[1]


def test_long_metadata_prints_once_and_apart() -> None:
    note = f'metadata_props={{"trace": "{"x" * 80}"}}'
    text = body(f"%a = relu %x : f32[2] <{note}>", f"%b = relu %a : f32[2] <{note}>")
    module = parse(text)
    printed = print_module(module)
    assert "  %a = relu %x : f32[2] <#m0>\n  %b = relu %a : f32[2] <#m0>\n" in printed
    assert printed.endswith(f"metadata {{\n  #m0 = <{note}>\n}}\n")
    again = parse(printed)
    assert first_difference(module, again) is None
    first, second = list(again.main.block)[:2]
    first.metadata["metadata_props"]["trace"] = "changed"
    assert second.metadata["metadata_props"]["trace"] == "x" * 80
    assert "trace" not in print_module(module, metadata=False)


def test_a_name_may_repeat_side_by_side_but_not_inside() -> None:
    text = body(
        "%t = if %c : f32[2]",
        "  then_branch() -> (%t: f32[2]) {",
        "    %t = relu %x : f32[2]",
        "    return %t",
        "  }",
        "  else_branch() -> (%t: f32[2]) {",
        "    %t = exp %x : f32[2]",
        "    return %t",
        "  }",
        "%u = relu %t : f32[2]",
    )
    module = parse(text)
    branch_value = module.main.block.first.regions["else_branch"].block.first.result  # type: ignore[union-attr]
    assert branch_value.name == "t"
    # The outer %t is in sight where the inner one is printed.
    printed = print_module(module)
    assert "      %t'1 = exp %x" in printed
    assert first_difference(module, parse(printed)) is None


def test_unnamed_values_are_numbered_through_regions() -> None:
    text = body(
        "%0 = relu %x : f32[2]",
        "%1 = if %c : f32[2]",
        "  then_branch() -> (f32[2]) {",
        "    %2 = relu %0 : f32[2]",
        "    return %2",
        "  }",
        "  else_branch() -> (none) {",
        "    %3 = exp %0 : f32[2]",
        "    return %3",
        "  }",
        "%4 = relu %1 : f32[2]",
    )
    module = parse(text)
    assert print_module(module) == text
    assert all(result.name is None for op in module.walk() for result in op.results)


def test_header_may_be_left_out() -> None:
    module = parse("func @main() -> () { return } // nothing")
    assert module.level == "onnx"
    assert module.opsets == {"": 28}


def test_symbols_of_the_text_are_taken() -> None:
    module = parse("func @main(%x: f32[n, ?4, n'2]) -> () { return }")
    assert str(module.symbols.distinct("n")) == "n'3"
    assert str(module.symbols.fresh()) == "?5"


def test_odd_function_keys_survive() -> None:
    module = parse("func @main() -> () { return }")
    for key in [FunctionKey("a b", "c::d", "e:f"), FunctionKey("", "", ""), FunctionKey("", "g", "h")]:
        block = Block()
        block._insert(Operation(opdef.lookup("", "return")), None)
        module.functions[key] = Function(key, block)
    assert list(parse(print_module(module)).functions) == list(module.functions)


def test_messages_can_print_a_broken_graph() -> None:
    relu = only_op("%a = relu %x : f32[2]")
    relu._set_operand(0, only_op("%other = relu %x : f32[2]").result)
    assert print_operation(relu) == "%a = relu %other'undefined : f32[2]"
    assert excerpt(relu) == "> %a = relu %other'undefined : f32[2]\n  return %x"


@pytest.mark.parametrize("value", [object(), {1: 2}, np.zeros(3)])
def test_what_is_no_attribute_is_refused(value: object) -> None:
    module = parse(body("%a = relu %x : f32[2]"))
    module.main.block.first.attributes["odd"] = value  # type: ignore[union-attr]
    with pytest.raises((TypeError, AttributeError)):
        print_module(module)


def test_the_example_of_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs/ir.md").read_text(encoding="utf-8").split("```")[1]
    module = parse(text)
    assert parse(print_module(module)).main.block.metadata == {"name": "encoder"}
    assert {op.name for op in module.walk()} >= {"const", "if", "my.domain.Gate"}


# ---- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"),
        (float(np.float32(0.1)), "0.1"),
        (0.1, "0.1f64"),
        (1e-5, "1e-05f64"),
        (float(np.float32(3.4028235e38)), "3.4028235e+38"),
        (1e39, "1e+39f64"),
        (-0.0, "-0.0"),
        (float(np.float32(1e-45)), "1e-45"),
        (math.inf, "inf"),
    ],
)
def test_float_text(value: float, text: str) -> None:
    assert float_text(value) == text
    assert float_of(text) == value
    assert math.copysign(1, float_of(text)) == math.copysign(1, value)


@given(st.floats(allow_nan=False))
def test_every_float_survives(value: float) -> None:
    assert float_of(float_text(value)) == value


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d is not dtypes.string], ids=str)
def test_every_bit_of_every_dtype_survives(dtype: dtypes.DType) -> None:
    """All values of types up to 16 bits, random bits for wider ones: NaN payloads, signed zeros, subnormals."""
    if dtype.bits <= 8:
        codes = np.arange(2**dtype.bits, dtype=np.uint8)
        array = codes.view(dtype.numpy) if dtype.bits in (6, 8) else None
        if array is None:
            packed = np.packbits(
                np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, : dtype.bits].ravel(), bitorder="little"
            )
            array = from_raw(packed.tobytes(), dtype, (len(codes),))
    elif dtype.bits == 16:
        array = np.arange(2**16, dtype=np.uint16)[::7].view(dtype.numpy)
    else:
        array = np.frombuffer(np.random.default_rng(0).bytes(dtype.bits * 100), dtype.numpy)
    data = ArrayData(array, dtype)
    assert tensor_of(element_texts(data), dtype, data.shape).same_as(data)


def test_decimals_are_short() -> None:
    def texts(values: list[float], dtype: dtypes.DType) -> list[str]:
        return element_texts(ArrayData(np.array(values).astype(dtype.numpy), dtype))

    assert texts([0.1, 448.0, 1e-3], dtypes.bf16) == ["0.1", "448.0", "0.001"]
    assert texts([448.0, 1.75], dtypes.f8e4m3fn) == ["448.0", "1.75"]
    assert texts([0.1, 65504], dtypes.f16) == ["0.1", "65504.0"]
    assert texts([1 / 3], dtypes.f64) == ["0.3333333333333333"]


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "expected `func`, found the end of the text"),
        ("func @main() -> () {\n  return\n", 3, 1, "expected an operator, found the end of the text"),
        (body("%a = rleu %x : f32[2]"), 4, 8, "there is no operator rleu"),
        (body("%a = relu %y : f32[2]"), 4, 13, "%y is not defined here"),
        (body("%a = relu %a : f32[2]"), 4, 13, "%a is not defined here"),
        (body("%x = relu %x : f32[2]"), 4, 3, "%x is defined already"),
        (body("%a = relu %x"), 5, 3, "expected `:`, found `return`"),
        (body("%a, %b = relu %x : f32[2]"), 5, 3, "expected `,`, found `return`"),
        (body("%a = relu %x : f33[2]"), 4, 18, "there is no element type f33"),
        (body("%a = relu %x : f32[-2]"), 4, 18, "a dimension is never negative, got -2"),
        (body("%a = relu %x : f32[9223372036854775808]"), 4, 18, "a dimension is less than 2**63, got 92233"),
        (body("%a = relu %x : f32[n +]"), 4, 25, "expected a dimension"),
        (body("%a = relu %x : f32"), 4, 18, "expected a type, found `f32`"),
        (body("%a = const [1, 2] : i64[3]"), 4, 14, "the literal is not of shape [3]"),
        (body("%a = const [[1], 2] : i64[2]"), 4, 14, "the literal is not of shape [2]"),
        (body("%a = const [1, 2] : i64[n]"), 4, 14, "a tensor literal needs a type with known dims"),
        (body("%a = const [300] : u8[1]"), 4, 14, "300 is beyond the range of u8, 0 to 255"),
        (body("%a = const [1.5] : u8[1]"), 4, 14, "1.5 is not an integer"),
        (body("%a = const [1e9] : f16[1]"), 4, 14, "1e9 is beyond the range of f16"),
        (body("%a = const [0x1] : f16[1]"), 4, 14, "0x1: the bits of f16 have 4 digits"),
        (body("%a = const #w3 : f32[n]"), 4, 14, "#w3 is not listed in the weights section"),
        (body("foo.Bar {a=1, a=2}"), 4, 17, "a is given twice"),
        (body("foo.Bar {a=1e39}"), 4, 14, "1e39 is beyond the range of f32"),
        (body("foo.Bar {a=$b}"), 4, 16, "expected `:`, found `}`"),
        (body("foo.Bar {a=" + "[" * 200), 4, 114, "nested more than 100 levels deep"),
        (body('foo.Bar {a="\\q"}'), 4, 14, "Invalid \\escape"),
        (body("foo.Bar @nowhere"), 4, 12, "expected a location"),
        (body("foo.Bar <#m3>"), 4, 12, "#m3 is not listed in the metadata section"),
        (body("foo.Bar body() -> () { return } body() -> () { return }"), 4, 35, "there are two regions 'body'"),
        (body("foo.Bar ; relu"), 4, 11, "found `;`"),
        (
            "func @main() -> () { return } func @f() -> () { return } func @f() -> () { return }",
            1,
            63,
            "two functions @f",
        ),
        ("func @main() -> () { return } weights { #w0 : f32[2] }", 1, 54, "expected `sha256`, found `}`"),
        ('func @main() -> () { return } weights { #w0 : f32[2] sha256="ab" }', 1, 61, "a SHA-256 hash has 64 digits"),
        ("func @main() -> () { return } weights { } func", 1, 43, "expected a section or the end, found `func`"),
    ],
)
def test_errors_point_at_the_place(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(text, source="model.tw")
    finding = caught.value.diagnostics[0]
    assert message in finding.message
    assert finding.message.startswith(f"line {line}, column {column}: ")
    assert finding.location == FileLocation("model.tw", line)
    shown, caret = finding.excerpt.split("\n")
    source_line = text.split("\n")[line - 1]
    assert shown in source_line
    assert source_line[column - 1 : column] == shown[len(caret) - 1 : len(caret)]


def test_errors_suggest_names() -> None:
    with pytest.raises(ParseError, match="did you mean softmax"):
        parse(body("%a = sofmax %x : f32[2]"))
    with pytest.raises(ParseError, match="did you mean %hidden"):
        parse(body("%hidden = relu %x : f32[2]", "%a = relu %hiden : f32[2]"))


_FRAGMENTS = [
    "{", "}", "(", ")", "[", "]", "<", ">", ":", "::", ",", "=", "@", "#", "$", "%", "%x", "none", "_", "f32[",
    "f32[n]", "-1", "1e999", "0x1", '"', 'b"', "//", "#w0", "#m0", "module", "func", "weights {", "9" * 5000, "nan",
    "\x00", "\n", "'3", "f32[n[5..1]]", "[" * 300, "opaque<", "return", "const", "floordiv(1,0)",
    "f32[" + "1," * 99 + "1]", "\ud800",
]  # fmt: skip


@settings(max_examples=120)
@given(
    st.lists(st.tuples(st.integers(0, 400), st.sampled_from(["", *_FRAGMENTS]), st.booleans()), min_size=1, max_size=4)
)
def test_parsing_is_total(edits: list[tuple[int, str, bool]]) -> None:
    """Whatever is done to a text, parsing gives a ParseError or a module that prints and parses again."""
    text = MODEL
    for index, fragment, replace in edits:
        tokens = tokenize(text)
        token = tokens[index % len(tokens)]
        text = text[: token.start] + fragment + text[token.start + len(token.text) * replace :]
    try:
        module = parse(text)
    except ParseError:
        return
    assert first_difference(module, parse(print_module(module))) is None


# ---- weights ---------------------------------------------------------------------------------------------------------


def module_with(data: TensorData) -> Module:
    module = parse(body("%w = const 0.0 : f32[]"))
    op = module.main.block.first
    assert op is not None
    op.attributes["value"] = data
    op.result.type = data.type
    return module


def constant_of(module: Module) -> TensorData:
    op = module.main.block.first
    assert op is not None
    data: TensorData = op.attributes["value"]
    return data


@pytest.fixture
def weights() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((40, 50), np.float32)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (ArrayData(np.arange(16, dtype=np.int64)), "const [0, 1, 2"),
        (ArrayData(np.arange(17, dtype=np.int64)), "const #w0 : i64[17]"),
        (ArrayData(np.zeros(256, np.float32)), "  #w0 : f32[256] = [0.0, 0.0"),
        (ArrayData(np.zeros(257, np.float32)), '  #w0 : f32[257] sha256="'),
        (ArrayData(np.full(3, "x" * 100, object)), '  #w0 : string[3] = ["xxx'),
    ],
    ids=["16 elements", "17 elements", "1024 bytes", "1028 bytes", "long strings"],
)
def test_where_a_constant_prints(data: TensorData, expected: str) -> None:
    module = module_with(data)
    assert expected in print_module(module)
    assert first_difference(module, parse(print_module(module), weights=module)) is None


def test_unresolved_weights_keep_their_hash(weights: np.ndarray) -> None:
    module = module_with(ArrayData(weights))
    unresolved = parse(print_module(module))
    assert first_difference(module, unresolved) is None
    assert structural_hash(module) == structural_hash(unresolved)
    assert print_module(unresolved) == print_module(module)
    with pytest.raises(ModelError, match="is not loaded"):
        constant_of(unresolved).numpy()


def test_weights_of_a_module(weights: np.ndarray) -> None:
    module = module_with(ArrayData(weights))
    other = module_with(ArrayData(weights + 1))
    assert constant_of(parse(print_module(module), weights=module)) is constant_of(module)
    assert isinstance(constant_of(parse(print_module(module), weights=other)), UnresolvedData)


def test_weights_of_a_folder(weights: np.ndarray, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"header" + weights.tobytes())
    mapped = MappedData(MappedFile.open(model), 6, weights.nbytes, dtypes.f32, weights.shape)
    text = print_module(module_with(mapped))
    assert text.rstrip("}\n").endswith('file="model.onnx" offset=6')
    found = constant_of(parse(text, weights=tmp_path))
    assert isinstance(found, MappedData)
    np.testing.assert_array_equal(found.numpy(), weights)

    # A file of other content is not the one the text speaks of.
    model.write_bytes(b"header" + (weights + 1).tobytes())
    assert isinstance(constant_of(parse(text, weights=tmp_path)), UnresolvedData)
    model.write_bytes(b"short")
    assert isinstance(constant_of(parse(text, weights=tmp_path)), UnresolvedData)

    (tmp_path / f"{found.sha256}.bin").write_bytes(weights.tobytes())
    np.testing.assert_array_equal(constant_of(parse(text, weights=str(tmp_path))).numpy(), weights)


def test_a_text_does_not_lead_out_of_the_folder(weights: np.ndarray, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.bin").write_bytes(weights.tobytes())
    sha256 = ArrayData(weights).sha256
    text = f"""func @main() -> () {{ %w = const #w0 : f32[40, 50] return }}
    weights {{ #w0 : f32[40, 50] sha256="{sha256}" file="../secret.bin" offset=0 }}"""
    assert isinstance(constant_of(parse(text, weights=inside)), UnresolvedData)


def test_printing_without_weights_reads_nothing(weights: np.ndarray) -> None:
    module = module_with(ArrayData(weights))
    text = print_module(module, weights="none")
    assert text == str(module)
    assert "sha256" not in text
    assert "sha256" not in constant_of(module).__dict__
    again = parse(text)
    assert constant_of(again).type is constant_of(module).type
    assert print_module(again, weights="none") == text
    assert first_difference(module, again) is not None


def test_two_weights_of_unknown_content_are_not_equal() -> None:
    text = body("%a = const #w0 : f32[300]", "%b = const #w1 : f32[300]")
    first, second = (op.attributes["value"] for op in list(parse(text).main.block)[:2])
    assert not first.same_as(second)


# ---- random modules --------------------------------------------------------------------------------------------------


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(random_modules.modules())
def test_any_module_survives(module: Module) -> None:
    text = print_module(module)
    again = parse(text, weights=module)
    assert first_difference(module, again) is None
    assert print_module(again) == text
    assert structural_hash(again) == structural_hash(module)

    short = print_module(module, weights="none")
    assert print_module(parse(short), weights="none") == short
