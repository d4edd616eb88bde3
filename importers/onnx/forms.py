"""Which form an operation has in a file: its own node, the operator of the standard, or its parts; and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...graph.core import Operation
from ...graph.dims import FreshSymbols
from ...graph.infer import InferenceContext
from ...graph.location import NodeLocation
from ...graph.opdef import OpDefinition
from ...graph.ops.attention_masks import replaces_scores
from ...graph.written_forms import Form, is_shorter_in_standard, size_of_form
from . import versions
from .read_node import Facts
from .runtime_support import has_kernel, why_in_parts


@dataclass(frozen=True)
class Choice:
    """One way to write an operation as others; `reason` is the end of "... is written as its parts: ", `code` that of
    the remark."""

    form: Form
    reason: str
    code: str = "export/in-parts"
    is_standard: bool = False  # the operator of the standard, and what makes its operands


@dataclass
class Forms:
    """Decides for the operations of a function that is written at `opsets`.

    Operators of the domains in `allowed` are written as they are, those of other domains decomposed where they can be;
    `calls` are domain and name of the model-local functions; `functions`: more of them are made of what is written as
    its parts, which then cost nothing, so that they are preferred to an operator that is not quite the same.
    """

    opsets: Mapping[str, int]
    allowed: frozenset[str]
    calls: frozenset[tuple[str, str]]
    symbols: FreshSymbols
    keep_fused: bool = False
    functions: bool = False
    _facts: Facts = field(init=False)

    def __post_init__(self) -> None:
        self._facts = Facts(InferenceContext(self.symbols), propagate=True)

    def first(self, op: Operation) -> Form | None:
        """What makes the operations that `op` will be written as; None if it is written as it is."""
        choice = next(self.choices(op), None)
        return None if choice is None else choice.form

    def takes_several(self, op: Operation) -> bool:
        """Whether `op` will be written as its parts, or as the standard's operator and more."""
        form = self.first(op)
        return form is not None and (form == op.definition.decompose or (size_of_form(op, form, self.symbols) or 0) > 1)

    def choices(self, op: Operation, is_part: bool = False, only_needed: bool = False) -> Iterator[Choice]:
        """The ways to write `op` as others, best first; none if its own node is the way.

        `is_part`: it stands in the form of another operation. `only_needed`: it is decided already that its own node is
        wanted, if there is one.
        """
        if op.name == "const" or op.is_terminator or (op.domain, op.op_type) in self.calls:
            return
        parts = op.definition.decompose
        if op.domain not in self.allowed:
            yield Choice(parts, f"operators of {op.domain} are for another target")
        if self.functions and not only_needed and not is_part and self.shows_hidden_keys(op) and not self._is_kept(op):
            yield Choice(parts, "the standard's operator adds to the scores of hidden keys, which the model replaces")
        if not only_needed and not is_part and self._has_standard_form(op):
            yield Choice(op.definition.standard_form, "", is_standard=True)
        refusal = self._refusal(op)
        if refusal is not None:
            yield Choice(parts, *self._explained(op, refusal))
            return
        reason = None if only_needed else self._why_in_parts(op)
        if reason is not None:
            yield Choice(parts, f"ONNX Runtime {reason}")

    def _explained(self, op: Operation, refusal: str) -> tuple[str, str]:
        """The reason why an operator without a node is written as its parts, and the code of the remark."""
        if self._has_standard_form_at_all(op):
            if self.loses_nan(op) and not self.keep_fused:
                reason = "weights that are NaN are 0 in it, which the standard's operator leaves NaN"
                return f"{reason}; --keep-fused takes that", Choice.code
            return "the standard's operator says less than this one, and would take no fewer nodes", Choice.code
        known, opset = versions.engine.versions(op.op_type, op.domain), self.opsets.get(op.domain, 1)
        if op.domain or not known or opset >= min(known):
            return refusal, Choice.code
        return f"opset {opset} does not have it, opset {min(known)} does", "export/newer-opset"

    def _refusal(self, op: Operation) -> str | None:
        """Why `op` has no node of its own at this opset; None if it has."""
        try:
            versions.downgrade(versions.node_of(op), self.opsets.get(op.domain, 1), self._facts)
        except versions.CannotDowngrade as reason:
            return str(reason)
        return None

    def loses_nan(self, op: Operation) -> bool:
        """Whether the standard's operator differs where operands are NaN."""
        return bool(op.attr("masking") == "nan-to-zero")

    def shows_hidden_keys(self, op: Operation) -> bool:
        """Whether the standard's operator differs where a hidden key holds NaN or infinity: it only adds to scores."""
        return op.name == "attention" and replaces_scores(op)

    def _why_in_parts(self, op: Operation) -> str | None:
        """Why an operator that could be written is not; one that is in the file as it is stays as it is."""
        return None if self._is_kept(op) else why_in_parts(op, self.opsets.get(op.domain, 1))

    def _is_kept(self, op: Operation) -> bool:
        """Whether an operator is wanted though it has its faults: it is asked for, or in the file as it is."""
        return self.keep_fused or isinstance(op.location, NodeLocation)

    def _has_standard_form(self, op: Operation) -> bool:
        """Whether an operation that says more than its operator in the standard is to be written as that.

        It is if that takes fewer nodes than its parts, or fused operators are to be kept.
        """
        if isinstance(op.location, NodeLocation) or not self._has_standard_form_at_all(op):
            return False
        if not self.keep_fused and self.loses_nan(op):
            return False
        if self.keep_fused:
            return size_of_form(op, op.definition.standard_form, self.symbols) is not None
        return has_kernel(op, self.opsets.get(op.domain, 1)) and is_shorter_in_standard(op, self.symbols)

    def _has_standard_form_at_all(self, op: Operation) -> bool:
        """Whether the operator may say more than that of the standard, and the opset has that one."""
        if type(op.definition).standard_form is OpDefinition.standard_form:
            return False
        return self.opsets.get(op.domain, 1) >= min(versions.engine.versions(op.op_type, op.domain))
