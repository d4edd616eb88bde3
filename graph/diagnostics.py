"""Errors and warnings that say what went wrong, where, and what to do about it.

Every error a user can meet is a `TilewrightError` carrying one or more `Diagnostic`s. A diagnostic has a stable
code (`shape/matmul-k`), a sentence, the location it speaks of, and notes; `render` lays it out for a terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .location import Location


# So many findings of one code are told in the text of an error; all of them are in its `diagnostics`.
MOST_OF_A_CODE = 8


@dataclass(frozen=True)
class Diagnostic:
    """One finding: `severity` is "error", "warning" or "remark"; `excerpt` holds the operations around the place."""

    code: str
    message: str
    location: Location | None = None
    notes: tuple[str, ...] = ()
    severity: str = "error"
    excerpt: str = ""

    def render(self) -> str:
        """The finding as lines of text: heading, place, excerpt, notes."""
        lines = [f"{self.severity}[{self.code}]: {self.message}"]
        if self.location is not None:
            lines.append(f"  at {self.location}")
        lines.extend(f"    {line}" for line in self.excerpt.splitlines())
        lines.extend(f"  note: {note}" for note in self.notes)
        return "\n".join(lines)


class TilewrightError(Exception):
    """Base of all errors raised on purpose; `diagnostics` is never empty."""

    def __init__(
        self, code: str, message: str, location: Location | None = None, *, notes: Iterable[str] = (), excerpt: str = ""
    ) -> None:
        self.diagnostics: tuple[Diagnostic, ...] = (Diagnostic(code, message, location, tuple(notes), excerpt=excerpt),)
        super().__init__(message)

    @classmethod
    def collect(cls, diagnostics: Sequence[Diagnostic]) -> TilewrightError:
        """One error for many findings, so that a user sees all of them at once."""
        if not diagnostics:
            raise ValueError("an error needs at least one diagnostic")
        error = cls(diagnostics[0].code, diagnostics[0].message)
        error.diagnostics = tuple(diagnostics)
        return error

    @property
    def code(self) -> str:
        return self.diagnostics[0].code

    def with_note(self, note: str) -> TilewrightError:
        """The same error with a note added to its first diagnostic (what was being done when it happened)."""
        first = self.diagnostics[0]
        noted = Diagnostic(
            first.code, first.message, first.location, (*first.notes, note), first.severity, first.excerpt
        )
        self.diagnostics = (noted, *self.diagnostics[1:])
        return self

    def __str__(self) -> str:
        """All findings; of those with the same code the first few, since a missing file concerns many tensors."""
        lines: list[str] = []
        counts: Counter[str] = Counter()
        for diagnostic in self.diagnostics:
            counts[diagnostic.code] += 1
            if counts[diagnostic.code] <= MOST_OF_A_CODE:
                lines.append(diagnostic.render())
        lines += [
            f"  and {count - MOST_OF_A_CODE} more of {code}" for code, count in counts.items() if count > MOST_OF_A_CODE
        ]
        return "\n".join(lines)


class ModelError(TilewrightError):
    """The model file is not valid: malformed, unsupported, or inconsistent with the ONNX specification."""


class TypeInferenceError(TilewrightError):
    """The operands of an operation do not fit: wrong dtype, rank or shape."""


class VerifyError(TilewrightError):
    """The IR breaks one of its own rules (use before definition, wrong operand count, illegal op at this level)."""


class ParseError(TilewrightError):
    """The IR text could not be read; the location names line and column."""


class PassError(TilewrightError):
    """A pass failed, did not converge, or broke the IR."""


class ExecutionError(TilewrightError):
    """Running a model failed: wrong inputs, or an operation met data that it is not defined for."""


class ExportError(TilewrightError):
    """The module cannot be written in the form that was asked for."""


class UsageError(TilewrightError):
    """A call or command line asks for something that does not exist or does not fit together."""


def listed(names: Iterable[str], limit: int = 8) -> str:
    """`a, b, c and 5 more`: names for a message, the first `limit` of them; "none" if there is none."""
    found = list(names)
    more = f" and {len(found) - limit} more" if len(found) > limit else ""
    return f"{', '.join(found[:limit])}{more}" if found else "none"


def require(name: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Raise UsageError, "NAME must be WANTED, not ...", unless the argument `name` of a call is of `kind`.

    A bool is no int.
    """
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise UsageError("usage/argument", f"{name} must be {wanted}, not {type(value).__name__}")


@dataclass
class DiagnosticLog:
    """Collects findings while work goes on; `raise_errors` stops at the end if any of them is an error."""

    diagnostics: list[Diagnostic] = field(default_factory=list)

    def error(self, code: str, message: str, location: Location | None = None, *notes: str) -> None:
        self.diagnostics.append(Diagnostic(code, message, location, notes))

    def warning(self, code: str, message: str, location: Location | None = None, *notes: str) -> None:
        self.diagnostics.append(Diagnostic(code, message, location, notes, "warning"))

    def remark(self, code: str, message: str, location: Location | None = None, *notes: str) -> None:
        self.diagnostics.append(Diagnostic(code, message, location, notes, "remark"))

    def has(self, code: str) -> bool:
        """Whether there is a finding of this code: for what is to be said once."""
        return any(diagnostic.code == code for diagnostic in self.diagnostics)

    @property
    def errors(self) -> list[Diagnostic]:
        return self.errors_since(0)

    def errors_since(self, count: int) -> list[Diagnostic]:
        """The errors among the findings after the first `count`; `len(log.diagnostics)` marks a place."""
        return [d for d in self.diagnostics[count:] if d.severity == "error"]

    @property
    def warnings(self) -> list[Diagnostic]:
        return [d for d in self.diagnostics if d.severity == "warning"]

    def raise_errors(self, kind: type[TilewrightError]) -> None:
        """Raise one `kind` holding all errors logged so far, if there are any."""
        if self.errors:
            raise kind.collect(self.errors)
