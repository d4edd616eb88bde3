"""What a pass is: a frozen dataclass whose fields are its options, with its contract as class attributes.

    @dataclass(frozen=True)
    class FoldConstants(Pass):
        \"\"\"Evaluate operations whose operands are all constants.\"\"\"

        name = "fold"
        level_in = level_out = "onnx"
        after = ("import-cleanup",)

        max_bytes: int = 4096          # `fold{max-bytes=65536}` in a pipeline

        def run(self, module, context):
            ...
            return changed

Most passes are a set of rules: `RulePass` needs only the tuple `rules`. One without options needs no decorator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

if TYPE_CHECKING:
    from ..graph.module import Module
    from .context import PassContext
    from .rules import AnyRule

# How closely results agree with the unchanged model's:
# "bit-exact": every bit; "reassociates": equal in real arithmetic, rounded differently;
# "approximate": differs by an error that the rule's docstring states.
Exactness: TypeAlias = Literal["bit-exact", "reassociates", "approximate"]

EXACTNESS_ORDER: tuple[Exactness, ...] = ("bit-exact", "reassociates", "approximate")


def is_allowed(exactness: Exactness, limit: Exactness) -> bool:
    """Whether a rewrite of this exactness may run where at most `limit` is permitted."""
    return EXACTNESS_ORDER.index(exactness) <= EXACTNESS_ORDER.index(limit)


@dataclass(frozen=True)
class Pass:
    """Base of all passes.

    `name` is how pipelines call it (kebab-case); `summary` one line for listings (default: the docstring's first).
    `level_in` is the level it takes (None: any), `level_out` the level it leaves (None: unchanged).
    `after` names passes that, where a pipeline has both, must come earlier.
    `fuses` says that its rules make fused operators: what they did, and where they nearly did, is what `fusions` lists.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    level_in: ClassVar[str | None] = "onnx"
    level_out: ClassVar[str | None] = "onnx"
    after: ClassVar[tuple[str, ...]] = ()
    exactness: ClassVar[Exactness] = "bit-exact"
    fuses: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "summary" not in cls.__dict__ and cls.__dict__.get("__doc__"):
            cls.summary = (cls.__doc__ or "").strip().splitlines()[0]

    def run(self, module: Module, context: PassContext) -> bool:
        """Rewrite `module` in place; return whether anything changed. All changes go through a `Rewriter`."""
        raise NotImplementedError

    def __str__(self) -> str:
        from .options import print_options

        return self.name + print_options(self)


@dataclass(frozen=True)
class RulePass(Pass):
    """A pass that applies its `rules` until none matches. Rules come in order of preference."""

    rules: ClassVar[tuple[type[AnyRule], ...]] = ()

    def run(self, module: Module, context: PassContext) -> bool:
        from .driver import apply_rules

        return apply_rules(module, self.rules, context)
