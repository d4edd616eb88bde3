"""What an operation is: one `OpDefinition` per operator, holding everything that is true of it on any machine.

A definition knows its signature, how result types follow from operands, its numpy meaning, how it decomposes into
other operations, and its gradient. What ONNX's own package knows is taken from there: signatures, attribute
defaults, fallback type inference, function bodies, and the reference implementation (see `onnx_schema`). So an
operator of the standard needs an entry under graph/ops only for what is better said here.

Define one by subclassing and `@op`:

    @op("Double", domain="my.ops")
    class Double(OpDefinition):
        inputs = ("x",)
        outputs = ("y",)
        traits = frozenset({Trait.ELEMENTWISE})

        def infer(self, op, context):
            return [op.operands[0].type]

        def evaluate(self, op, x):
            return x + x
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from . import types
from .cached import cached_property

if TYPE_CHECKING:
    from .builder import OpBuilder
    from .core import AttributeValue, Operation, Value
    from .dims import Dim
    from .gradients.builder import GradientBuilder
    from .gradients.rules import Adjoint
    from .infer import InferenceContext, SymbolicArray
    from .lowerings.builder import KernelBuilder
    from .onnx_schema import Schema
    from .types import Type


class Trait(Enum):
    """Properties that passes ask for instead of operator names."""

    ELEMENTWISE = auto()  # result element i depends on element i of each operand (after broadcasting)
    BROADCAST = auto()  # operands are broadcast against each other (numpy rules)
    COMMUTATIVE = auto()  # the first two operands may be exchanged
    INJECTIVE = auto()  # only moves data: every result element is a copy of one operand element (or a constant)
    REDUCTION = auto()  # combines elements along axes
    CONTRACTION = auto()  # sums of products: matmul, convolution, einsum
    TERMINATOR = auto()  # ends a block
    RANDOM = auto()  # two executions may differ; never folded, merged or repeated
    EFFECT = auto()  # must run even if its results are unused
    SHAPE_ONLY = auto()  # reads only the operand's shape, not its elements
    CONTROL_FLOW = auto()  # runs its regions

    __hash__ = object.__hash__  # Enum's own is slower, and members are unique


class ParameterKind(Enum):
    REQUIRED = auto()
    OPTIONAL = auto()
    VARIADIC = auto()


@dataclass(frozen=True, slots=True)
class Parameter:
    """An input or output of a signature. `types` holds the text of the types ONNX allows there (empty: any)."""

    name: str
    kind: ParameterKind = ParameterKind.REQUIRED
    types: frozenset[str] = frozenset()
    minimum: int = 1  # for VARIADIC: the least number of values


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """An attribute of a signature. `kind` is its ONNX type in lower case ("int", "floats", "tensor", "graph"...)."""

    name: str
    kind: str
    required: bool = False
    default: AttributeValue = None


class OpDefinition:
    """Base of all definitions; see the module's docstring. Instances are unique, so `is` compares them."""

    domain: str = ""
    op_type: str = ""
    traits: ClassVar[frozenset[Trait]] = frozenset()
    # Signature of an operator that ONNX does not define. A name ending in "?" is optional, in "*" variadic.
    inputs: ClassVar[tuple[str, ...] | None] = None
    outputs: ClassVar[tuple[str, ...] | None] = None
    attributes: ClassVar[dict[str, AttributeValue]] = {}  # name -> default; None means required
    # How results differ from those of the runtime whose operator it is; said where the two are compared.
    deviation: ClassVar[str] = ""
    # False where the domain has no versions: a node may have operands and attributes that this signature does not list.
    closed: ClassVar[bool] = True

    def __init__(self, domain: str, op_type: str, version: int | None = None) -> None:
        self.domain = domain
        self.op_type = op_type
        self.version = version  # set only for an old form of a standard operator, see graph/ops/legacy
        self.name = qualified_name(domain, op_type, version)

    # ---- signature -----------------------------------------------------------------------------------------------

    @cached_property
    def schema(self) -> Schema | None:
        """ONNX's own schema for this operator; None if ONNX does not define it."""
        from .onnx_schema import find_schema

        return find_schema(self.domain, self.op_type, self.version)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        if self.inputs is not None:
            return tuple(map(_parameter, self.inputs))
        return self.schema.inputs if self.schema else (Parameter("inputs", ParameterKind.VARIADIC, minimum=0),)

    @cached_property
    def result_parameters(self) -> tuple[Parameter, ...]:
        if self.outputs is not None:
            return tuple(map(_parameter, self.outputs))
        return self.schema.outputs if self.schema else (Parameter("outputs", ParameterKind.VARIADIC, minimum=0),)

    @cached_property
    def attribute_specs(self) -> dict[str, AttributeSpec]:
        if self.inputs is None and self.schema is not None:
            return self.schema.attributes
        return {
            name: AttributeSpec(name, _kind_of(default), default is None, default)
            for name, default in self.attributes.items()
        }

    @cached_property
    def _input_positions(self) -> dict[str, int]:
        return {parameter.name: index for index, parameter in enumerate(self.parameters)}

    def input_index(self, name: str) -> int:
        """The position of the input called `name`. Raises KeyError for an unknown name."""
        return self._input_positions[name]

    def attribute_default(self, name: str, fallback: AttributeValue = None) -> AttributeValue:
        spec = self.attribute_specs.get(name)
        return fallback if spec is None or spec.default is None else spec.default

    @cached_property
    def is_terminator(self) -> bool:
        return Trait.TERMINATOR in self.traits

    @cached_property
    def is_known(self) -> bool:
        """False for an operator that is only carried through, such as one of an unknown domain."""
        return self.inputs is not None or self.schema is not None

    @cached_property
    def is_pure(self) -> bool:
        """Whether unused or repeated executions can be dropped (regions are judged separately)."""
        return self.is_known and not self.traits & {Trait.RANDOM, Trait.EFFECT, Trait.TERMINATOR}

    # ---- meaning -------------------------------------------------------------------------------------------------

    def infer(self, op: Operation, context: InferenceContext) -> Sequence[Type]:
        """The types of all results, from operand types, attributes and known operand values.

        A dim that cannot be known gets `context.fresh()`, never a guess. Raises TypeInferenceError for operands that
        do not fit. The default asks ONNX's own inference.
        """
        if self.schema is None:
            return [types.UNKNOWN] * len(op.results)
        from .onnx_schema import infer_with_onnx

        return infer_with_onnx(self.schema, op, context)

    def propagate(
        self, op: Operation, context: InferenceContext
    ) -> SymbolicArray | Sequence[SymbolicArray | None] | None:
        """The elements of the integer result as dims, if they follow from shapes; else None.

        Several results give a sequence with an entry for each.
        """
        return None

    @cached_property
    def propagates(self) -> bool:
        """Whether `propagate` looks at operand elements, so that they are worth finding first."""
        return type(self).propagate is not OpDefinition.propagate and Trait.SHAPE_ONLY not in self.traits

    def needs_all_results(self, op: Operation) -> bool:
        """Whether `op` must give all its results, also optional ones that nobody uses."""
        return False

    def flops(self, op: Operation) -> Dim | None:
        """Arithmetic operations that one execution takes, from the operand and result types; None if unknown.

        A multiply-add counts 2; comparing, rounding and each transcendental function count 1; moving data counts 0.
        """
        if self.traits & {Trait.INJECTIVE, Trait.SHAPE_ONLY}:
            return 0
        if Trait.ELEMENTWISE in self.traits:
            return _elements(op.results[0].type)
        if Trait.REDUCTION in self.traits and op.operands and op.operands[0] is not None:
            return _elements(op.operands[0].type)
        return None

    def evaluate(self, op: Operation, *operands: Any) -> Any:
        """The results for numpy operands (None where left out): an array, or a tuple for several results.

        The default uses `decompose` if this class has one, else ONNX's reference implementation of this operator.
        """
        from .onnx_schema import evaluate_with_onnx

        return evaluate_with_onnx(self, op, operands)

    def decompose(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        """Equal values made of simpler operations, or None if there is no decomposition.

        The default is the operator's function body in the ONNX standard, if it has one.
        """
        if self.schema is None:
            return None
        from .onnx_schema import expand_function_body

        return expand_function_body(self.schema, op, builder)

    def standard_form(self, op: Operation, builder: OpBuilder) -> Sequence[Value] | None:
        """Equal values made with the standard's operator, for an `op` with attributes that only Tilewright knows.

        None where there is nothing to say: `op` is standard, or has no such form.
        """
        return None

    def lower(self, op: Operation, builder: KernelBuilder) -> Sequence[Value] | None:
        """The results made of kernels (see `graph/kernel`), or None if there is no way, or none in this case.

        The default is the rule registered for this operator, see `lowerings.rules`, or a map of its body if it is
        elementwise. In place of None, the parts that `decompose` gives are lowered if all of them can be.
        """
        from .lowerings.rules import find_lowering

        return find_lowering(self)(op, builder)

    def gradient(
        self, op: Operation, grads: Sequence[Value | None], builder: GradientBuilder
    ) -> Sequence[Adjoint] | None:
        """The adjoints of the operands, given those of the results (None for a result that has none).

        An adjoint is a value of the operand's shape; None where the operand has no influence that could be
        differentiated (an index); or a `gradients.rules.Refusal`. None in the place of all: differentiate the parts,
        which is what `decompose` says. The default is the rule registered for this operator, see `gradients.rules`.
        """
        from .gradients.rules import find_rule

        rule = find_rule(self)
        return None if rule is None else rule(op, grads, builder)

    def __repr__(self) -> str:
        return f"<OpDefinition {self.name}>"


def _elements(type: Type) -> Dim | None:
    return type.elements if isinstance(type, types.TensorType) else None


class OpaqueDefinition(OpDefinition):
    """An operator nobody here knows (custom domain) or a call of a model-local function: carried through."""

    @cached_property
    def schema(self) -> Schema | None:
        return None


_Definition = TypeVar("_Definition", bound=type)
_registry: dict[tuple[str, str, int | None], OpDefinition] = {}
_by_name: dict[str, OpDefinition] = {}
_opaque: dict[tuple[str, str], OpaqueDefinition] = {}


def op(
    name: str, *, domain: str = "", version: int | None = None, traits: frozenset[Trait] | set[Trait] | None = None
) -> Callable[[_Definition], _Definition]:
    """Class decorator: register `name` of `domain`. The class may, but need not, inherit from `OpDefinition`."""

    def register_class(cls: _Definition) -> _Definition:
        base = cls if issubclass(cls, OpDefinition) else type(cls.__name__, (cls, OpDefinition), {})
        if traits is not None:
            base = type(base.__name__, (base,), {"traits": frozenset(traits)})
        register(base(domain, name, version))
        return cls

    return register_class


def register(definition: OpDefinition) -> OpDefinition:
    """Add a definition. Raises ValueError if its domain, name and version are taken."""
    if definition.domain.startswith("com.microsoft"):
        _load(_ONNX_RUNTIME)  # so that a clash shows here, not when that package is needed
    key = (definition.domain, definition.op_type, definition.version)
    if key in _registry:
        raise ValueError(f"the operator {definition.name} is defined already, by {type(_registry[key]).__name__}")
    _registry[key] = definition
    _by_name[definition.name] = definition
    return definition


def unregister(domain: str, name: str) -> None:
    """Forget a definition (for tests and interactive use)."""
    definition = _registry.pop((domain, name, None))
    del _by_name[definition.name]


def find(domain: str, op_type: str, version: int | None = None) -> OpDefinition | None:
    """The definition of a registered or standard operator; None if there is none."""
    if domain in _LOOP_DOMAINS:
        _load(_LOOPS)
        return _registry.get((domain, op_type, version))
    _load(_OLD_FORMS if version is not None else _FAMILIES)
    domain = "" if domain == "ai.onnx" else domain
    definition = _registry.get((domain, op_type, version))
    if definition is None:
        candidate = OpDefinition(domain, op_type, version)
        if candidate.schema is None:
            return find(domain, op_type, version) if _load(_ONNX_RUNTIME) else None
        definition = register(candidate)
    return definition


def lookup(domain: str, op_type: str, version: int | None = None) -> OpDefinition:
    """Like `find`, but an unknown operator gives an opaque definition that is only carried through."""
    return find(domain, op_type, version) or opaque(domain, op_type)


def opaque(domain: str, op_type: str) -> OpaqueDefinition:
    """The definition that only carries an operator through: for calls of model-local functions."""
    key = (domain, op_type)
    return _opaque.get(key) or _opaque.setdefault(key, OpaqueDefinition(domain, op_type))


def find_by_name(name: str) -> OpDefinition | None:
    """The definition whose `name` in IR text is `name`: `matmul`, `add.v6`, `ai.onnx.ml.Scaler`."""
    _load(_FAMILIES)
    found = _by_name.get(name)
    if found is not None:
        return found
    domain, _, op_type = name.rpartition(".")
    if match := re.fullmatch(r"(.+)\.v(\d+)", name):
        base = find_by_name(match[1])
        return find(base.domain, base.op_type, int(match[2])) if base else None
    if domain:
        return find(domain, op_type)
    from .onnx_schema import standard_names

    standard = standard_names().get(name)
    if standard is None:
        return find_by_name(name) if _load(_ONNX_RUNTIME) else None
    return find("", standard)


def registered() -> tuple[OpDefinition, ...]:
    """All definitions seen so far, in a fixed order."""
    for package in (_FAMILIES, _OLD_FORMS, _ONNX_RUNTIME):
        _load(package)
    return tuple(_registry[key] for key in sorted(_registry, key=lambda k: (k[0], k[1], k[2] or 0)))


# Packages of definitions: old forms, ONNX Runtime's operators and those of loops are loaded when the first of them is
# asked for.
_FAMILIES, _OLD_FORMS, _ONNX_RUNTIME, _LOOPS = ".ops", ".ops.legacy", ".ops.microsoft", ".kernel"
_LOOP_DOMAINS = frozenset({"loop", "scalar", "element", "kernel"})
_loaded: set[str] = set()


def _load(package: str) -> bool:
    """Import a package of definitions; whether it had not been before."""
    if package in _loaded:
        return False
    _loaded.add(package)
    importlib.import_module(package, __package__)
    return True


# CamelCase splits badly where a name holds abbreviations; these are how the field writes them.
_MNEMONICS = {
    "ArgMax": "argmax", "ArgMin": "argmin", "Constant": "const", "CumSum": "cumsum", "CumProd": "cumprod",
    "MatMul": "matmul", "MatMulInteger": "matmul_integer", "QLinearMatMul": "qlinear_matmul", "TopK": "topk",
    "QLinearConv": "qlinear_conv", "PRelu": "prelu", "IsInf": "isinf", "IsNaN": "isnan", "NonZero": "nonzero",
    "TfIdfVectorizer": "tfidf_vectorizer", "SwiGLU": "swiglu", "LpNormalization": "lp_normalization",
}  # fmt: skip


def mnemonic(op_type: str) -> str:
    """The IR name of a standard operator: `LayerNormalization` is `layer_normalization`, `MatMul` is `matmul`."""
    known = _MNEMONICS.get(op_type)
    if known is not None:
        return known
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", op_type).lower()


def qualified_name(domain: str, op_type: str, version: int | None = None) -> str:
    name = f"{domain}.{op_type}" if domain else mnemonic(op_type)
    return name if version is None else f"{name}.v{version}"


def _parameter(text: str) -> Parameter:
    if text.endswith("?"):
        return Parameter(text[:-1], ParameterKind.OPTIONAL)
    if text.endswith("*"):
        return Parameter(text[:-1], ParameterKind.VARIADIC, minimum=0)
    return Parameter(text)


def _kind_of(default: AttributeValue) -> str:
    if isinstance(default, tuple):
        return f"{_kind_of(default[0])}s" if default else "ints"
    names = {bool: "int", int: "int", float: "float", str: "string", bytes: "string"}
    return names.get(type(default), "tensor" if isinstance(default, np.ndarray) else "any")
