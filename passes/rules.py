"""Rules: one local rewrite each, as three methods: what to match, when it is right, what to build.

    class MatMulAddToGemm(Rule):
        \"\"\"add(matmul(a, b), c) -> gemm(a, b, c)\"\"\"

        name = "matmul-add-to-gemm"

        def match(self, p, a, b, c):
            return p.add(p.matmul(a, b), c)

        def when(self, m):
            return m.rank(m.a) == 2 or m.fail("lhs rank is not 2", m.a)

        def build(self, b, m):
            return b.gemm(m.a, m.b, m.c)

`match` is written in the language of `pattern` and traced once. A rule that looks at a single operation, and needs
ordinary code to do so, is an `OpRule`: `root` names the operations, `when` and `build` do the rest.

The contract: nothing changes before `build`; new operations are inserted before the root through `b`; every other
change goes through `m.rewriter`; results have the shape, dtype and meaning of what they replace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from ..graph.core import Operation, Value
from ..graph.infer import InferenceContext
from ..graph.types import TensorType
from .base import Exactness

if TYPE_CHECKING:
    import numpy as np

    from ..graph.builder import OpBuilder
    from ..graph.data import TensorData
    from ..graph.dims import Dim
    from ..graph.dtypes import DType
    from ..graph.infer import SymbolicArray
    from ..graph.rewriter import Rewriter
    from .context import PassContext


class Mismatch:
    """Why a rule does not apply. False in a condition, so that `test or m.fail(...)` reads well."""

    __slots__ = ("culprits", "reason")

    def __init__(self, reason: str, culprits: tuple[Value | Operation, ...] = ()) -> None:
        self.reason, self.culprits = reason, culprits

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<Mismatch {self.reason}>"


Verdict: TypeAlias = "bool | Mismatch | None"
Replacement: TypeAlias = "Value | Sequence[Value | None] | Mismatch | None"


class Match:
    """The operations and values that a rule matched.

    Captures are attributes: `m.x` is a Value (None where the alternative with `x` was not taken), an attribute capture
    its value, a variadic capture a tuple. `root` is the operation to be replaced, `ops` all matched operations in
    order, the root last (constants are not among them), `replaced` the values that `build` must give anew.
    """

    __slots__ = ("_captures", "_labels", "_session", "ops", "replaced", "root", "rule")

    def __init__(
        self,
        rule: AnyRule,
        root: Operation,
        ops: tuple[Operation, ...],
        replaced: tuple[Value, ...],
        captures: Mapping[str, Any],
        labels: Mapping[str, Operation | None],
        session: Session,
    ) -> None:
        self.rule, self.root, self.ops, self.replaced = rule, root, ops, replaced
        self._captures, self._labels, self._session = captures, labels, session

    def __getattr__(self, name: str) -> Any:
        try:
            return self._captures[name]
        except KeyError:
            raise AttributeError(f"the rule {self.rule.name} captures nothing called {name!r}") from None

    def fail(self, reason: str, *culprits: Value | Operation) -> Mismatch:
        """A refusal with its reason and the values or operations it is about."""
        return Mismatch(reason, culprits)

    def op(self, name: str) -> Operation | None:
        """The operation captured as `name` by `p.named`, else the (first) matched operation of that IR name."""
        if name in self._labels:
            return self._labels[name]
        for op in self.ops:
            if op.name == name:
                return op
        return None

    def matched(self, *names: str) -> Operation:
        """The first matched operation of one of these IR names, which the rule's pattern always has."""
        return next(op for op in self.ops if op.name in names)

    @property
    def value(self) -> Value:
        """The (first) value to be replaced."""
        return self.replaced[0]

    @property
    def rewriter(self) -> Rewriter:
        """For changing operations in place; in `build` only."""
        if self._session.rewriter is None:
            raise RuntimeError(f"{self.rule.name}: only `build` may change the graph")
        return self._session.rewriter

    @property
    def context(self) -> PassContext:
        return self._session.context

    # ---- questions about values ----------------------------------------------------------------------------------

    @property
    def inference(self) -> InferenceContext:
        """Answers questions about known elements; valid until the graph changes."""
        return self._session.inference

    def data(self, value: Value | None) -> TensorData | None:
        """The constant that makes `value`; None if another operation does."""
        return self.inference.data(value)

    def constant(self, value: Value | None) -> np.ndarray | None:
        """The elements of `value`, if it is a constant or follows from shapes alone; else None."""
        return self.inference.constant(value)

    def scalar(self, value: Value | None) -> Any:
        """The Python number of a constant with one element; else None."""
        data = self.data(value)
        return data.numpy().reshape(()).item() if data is not None and data.elements == 1 else None

    def symbolic(self, value: Value | None) -> SymbolicArray | None:
        """The elements of an integer value as dims, if they follow from shapes; else None."""
        return self.inference.symbolic(value)

    def dtype(self, value: Value | None) -> DType | None:
        """The element type; None if it is not (known to be) a tensor."""
        return value.type.dtype if value is not None and isinstance(value.type, TensorType) else None

    def shape(self, value: Value | None) -> tuple[Dim, ...] | None:
        """The dims; None if the rank is unknown."""
        return value.type.shape if value is not None and isinstance(value.type, TensorType) else None

    def rank(self, value: Value | None) -> int | None:
        """The number of dims; None if it is unknown."""
        shape = self.shape(value)
        return None if shape is None else len(shape)


class Session:
    """What the matches of one driver run share."""

    def __init__(self, context: PassContext, inference: Callable[[], InferenceContext]) -> None:
        self.context = context
        self.rewriter: Rewriter | None = None  # set while `build` runs
        self._make_inference = inference
        self._inference: InferenceContext | None = None

    @property
    def inference(self) -> InferenceContext:
        if self._inference is None:
            self._inference = self._make_inference()
        return self._inference

    def forget(self) -> None:
        """The graph has changed."""
        self._inference = None


class _RuleBase:
    """What both kinds of rule share.

    `name` is kebab-case and names the rewrite (default: the class name). `exactness` says how closely results agree.
    `proves_types`: `when` itself has shown that the result's shape is the old one. Otherwise a replacement by an
    existing value whose dims cannot be shown to be the old ones is not made; one whose dtype or dims certainly differ
    is an error in any case.
    """

    name: ClassVar[str] = ""
    exactness: ClassVar[Exactness] = "bit-exact"
    proves_types: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = "".join(f"-{c.lower()}" if c.isupper() else c for c in cls.__name__).lstrip("-")

    def when(self, m: Match) -> Verdict:
        """Whether the rewrite is right here: True or None for yes, `m.fail(reason, ...)` for no. Changes nothing."""
        return True

    def build(self, b: OpBuilder, m: Match) -> Replacement:
        """The new value(s) for `m.replaced`, built with `b` before the root, or existing ones.

        None after changing the root in place through `m.rewriter`. `m.fail(...)` declines after all (what `b` made
        is taken back).
        """
        raise NotImplementedError(f"the rule {self.name} builds nothing")

    @property
    def summary(self) -> str:
        return (type(self).__doc__ or "").strip().split("\n", 1)[0]


class Rule(_RuleBase):
    """A rewrite of several operations; `match(self, p, captures...)` returns the pattern of the values to replace."""

    match: Callable[..., Any]


class OpRule(_RuleBase):
    """A rewrite of one operation, whose `m.root` is any of `root`; `m.input("data")` style questions go to the op."""

    root: ClassVar[str | tuple[str, ...]] = ()


AnyRule: TypeAlias = Rule | OpRule
