"""`optimize` of a module in place, and the report of what it did: per pass, per operator, in bytes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..graph import dtypes
from ..graph.data import TensorData
from ..graph.diagnostics import UsageError
from ..graph.infer import InferenceContext
from ..graph.ops.attention_standard import RUNTIME_OPSETS
from ..graph.ops.masked_rows import rows_may_be_masked
from ..graph.types import TensorType
from .context import Fusion, PassContext
from .manager import PassManager
from .pipelines import EXACTNESS, preset

if TYPE_CHECKING:
    from ..graph.diagnostics import Diagnostic
    from ..graph.module import Module
    from .fusions import MissedFusion
    from .instruments import Instrument
    from .report import PipelineReport


@dataclass(frozen=True)
class ModelSummary:
    """What a model holds: nodes by operator (constants left out, nodes of subgraphs and functions counted), bytes.

    The report of `tilewright.optimize` counts the nodes that are written: a fused operator is several at an opset that
    does not have it.
    """

    operators: Counter[str] = field(default_factory=Counter)
    weight_bytes: int = 0

    @property
    def nodes(self) -> int:
        return sum(self.operators.values())


def summarize(module: Module) -> ModelSummary:
    """Count a module's nodes, under their ONNX names, and the bytes of its constants."""
    operators: Counter[str] = Counter()
    weight_bytes = 0
    for op in module.walk():
        if op.name == "const":
            value = op.attributes.get("value")
            weight_bytes += value.nbytes if isinstance(value, TensorData) else 0
        elif not op.is_terminator:
            operators[f"{op.domain}::{op.op_type}" if op.domain else op.op_type] += 1
    weight_bytes += sum(data.nbytes for function in module.all_functions() for data in function.defaults.values())
    return ModelSummary(operators, weight_bytes)


@dataclass
class OptimizeReport:
    """What `optimize` did to `module`."""

    module: Module
    level: int | None  # None: the passes were given
    pipeline: PipelineReport
    before: ModelSummary
    after: ModelSummary
    fusions: list[Fusion] = field(default_factory=list)  # the rewrites of passes that fuse, in order

    @property
    def changed(self) -> bool:
        return self.pipeline.changed

    @property
    def remarks(self) -> list[Diagnostic]:
        return [d for d in self.pipeline.diagnostics if d.severity == "remark"]

    @property
    def warnings(self) -> list[Diagnostic]:
        return [d for d in self.pipeline.diagnostics if d.severity == "warning"]

    def near_misses(self) -> list[MissedFusion]:
        """Where the module, as it is now, nearly has another fused operator, and the check that failed."""
        from .fusions import near_misses

        return near_misses(self.module, PassManager.parse(self.pipeline.pipeline).passes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "level": self.level,
            "pipeline": self.pipeline.pipeline,
            "changed": self.changed,
            "seconds": self.pipeline.seconds,
            "nodes": {"before": self.before.nodes, "after": self.after.nodes},
            "operators": {
                name: {"before": self.before.operators[name], "after": self.after.operators[name]}
                for name in sorted({*self.before.operators, *self.after.operators})
            },
            "weight_bytes": {"before": self.before.weight_bytes, "after": self.after.weight_bytes},
            "passes": [row.to_dict() for row in self.pipeline.rows],
            "rules": dict(self.pipeline.rules),
            "diagnostics": [
                {
                    "severity": d.severity,
                    "code": d.code,
                    "message": d.message,
                    "location": str(d.location) if d.location is not None else None,
                    "notes": list(d.notes),
                }
                for d in self.pipeline.diagnostics
            ],
        }

    def __str__(self) -> str:
        return "\n\n".join([self.operator_table(), self.pass_table()])

    def operator_table(self) -> str:
        """Nodes by operator, before and after; operators whose number did not change come together in one line."""
        names = sorted({*self.before.operators, *self.after.operators})
        before, after = self.before.operators, self.after.operators
        rows = [(n, before[n], after[n]) for n in names if before[n] != after[n]]
        same = sum(before[n] for n in names if before[n] == after[n])
        if same:
            rows.append(("(unchanged operators)", same, same))
        rows.append(("nodes", self.before.nodes, self.after.nodes))
        rows.append(("weight bytes", self.before.weight_bytes, self.after.weight_bytes))
        cells = [(name, f"{b:,}", f"{a:,}", f"{a - b:+,}" if a != b else "") for name, b, a in rows]
        return _table([("operator", "before", "after", "change"), *cells])

    def pass_table(self) -> str:
        """One row per pass that ran: nodes, time, and the rules it applied."""
        cells = [("pass", "operations", "", "ms", "rewrites")]
        for row in self.pipeline.rows:
            rules = ", ".join(f"{name} x{count}" if count > 1 else name for name, count in row.rules.items())
            change = f"{row.ops_after - row.ops_before:+d}" if row.ops_after != row.ops_before else ""
            note = rules or ("changed" if row.changed else "")
            cells.append((row.text, f"{row.ops_after}", change, f"{row.seconds * 1e3:.2f}", note))
        return _table(cells)


def optimize(
    module: Module,
    level: int = 2,
    passes: str | None = None,
    opset: int | None = None,
    target: str = "onnx",
    *,
    context: PassContext | None = None,
    instruments: Iterable[Instrument] = (),
    verify_each: bool = False,
) -> OptimizeReport:
    """Rewrite `module` in place by the preset O`level`, or by the pipeline text `passes`.

    `opset` becomes the version of the default domain under which the module is written. `target` "onnx" keeps to
    standard operators, "onnxruntime" also uses those of that runtime, which `save` writes for this target. Raises
    UsageError for a level, pass or target that does not exist, PassError if a pass fails.
    """
    if level not in EXACTNESS:
        raise UsageError("optimize/level", f"there is no level {level}", notes=[f"levels are {list(EXACTNESS)}"])
    if target not in ("onnx", "onnxruntime"):
        raise UsageError("optimize/target", f"there is no target {target!r}", notes=['use "onnx" or "onnxruntime"'])
    manager = PassManager.parse(
        preset(level, target) if passes is None else passes, verify_each=verify_each, instruments=instruments
    )
    if context is None:
        context = PassContext(exactness=EXACTNESS[level] if passes is None else "approximate")
    before = summarize(module)
    if opset is not None:
        _warn_of_other_kernels(module, opset, context)
        # Operations are held in their newest form whatever this says; passes may ask what can be written.
        module.opsets[""] = opset
    report = manager.run(module, context)
    return OptimizeReport(module, level if passes is None else None, report, before, summarize(module), context.fusions)


def _warn_of_other_kernels(module: Module, opset: int, context: PassContext) -> None:
    """Say which results ONNX Runtime 1.32 gives otherwise at `opset`, for the same operators.

    Up to opset 24 its Attention gives zeros for a query whose keys all have the lowest number added, from 25 on what
    the standard says.
    """
    if not module.opsets.get("", 0) < RUNTIME_OPSETS.stop <= opset:
        return
    inference = InferenceContext(module.symbols)
    for op in module.walk():
        mask = op.input(3) if op.name == "attention" else None
        if mask is None or not rows_may_be_masked(mask, inference):
            continue
        # In functions the type is not known.
        if isinstance(mask.type, TensorType) and mask.type.dtype is dtypes.bool_:
            continue
        context.remark(
            "optimize/other-kernel",
            "from opset 25 on ONNX Runtime 1.32 gives a query whose keys all have the lowest number added the mean"
            " of the values, and gave it zeros before",
            op.location,
        )


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows of text in aligned columns, numbers to the right, with a rule under the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(map(_align, row, widths)).rstrip() for row in rows]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def _align(cell: str, width: int) -> str:
    is_number = re.fullmatch(r"[-+]?[\d,.]+", cell) is not None
    return cell.rjust(width) if is_number else cell.ljust(width)
