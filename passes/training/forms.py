"""The form for training and the form for inference: what BatchNormalization and Dropout do in each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...graph.clone import clone_module
from ...graph.core import Operation
from ...graph.data import as_data
from ...graph.infer import InferenceContext, infer_types
from ...graph.rewriter import Rewriter
from .dropout import in_training

if TYPE_CHECKING:
    from ...graph.diagnostics import DiagnosticLog
    from ...graph.module import Module

# BatchNormalization has an attribute training_mode from 14 on, Dropout an input of that name from 12 on.
LEAST_OPSET = 14
LISTED = 20


def training_form(module: Module, log: DiagnosticLog | None = None) -> Module:
    """A copy in which each BatchNormalization uses the statistics of its batch and each Dropout drops.

    A BatchNormalization that was folded into its convolution at export cannot come back; `log` receives a remark that
    lists the layers that may have had one (`folded_layers`).
    """
    copy = clone_module(module)
    context, rewriter = InferenceContext(copy.symbols), Rewriter(copy.symbols)
    for op in list(copy.walk()):
        if op.name == "batch_normalization" and not op.attr("training_mode"):
            _start_batch_norm(op, rewriter, context)
        elif op.name == "dropout" and in_training(op, context) is not True:
            _set_dropout(op, rewriter, True)
    if copy.opsets.get("", LEAST_OPSET) < LEAST_OPSET:
        copy.opsets[""] = LEAST_OPSET
    folded = folded_layers(copy)
    if folded and log is not None:
        more = f" and {len(folded) - LISTED} more" if len(folded) > LISTED else ""
        log.remark(
            "train/folded-batch-norm",
            f"{len(folded)} convolutions have a bias and no BatchNormalization behind them; one that was folded into "
            "them at export cannot come back",
            None,
            ", ".join(folded[:LISTED]) + more,
        )
    return copy


def inference_form(module: Module) -> Module:
    """A copy in which each BatchNormalization uses its running statistics and no Dropout drops."""
    copy = clone_module(module)
    context, rewriter = InferenceContext(copy.symbols), Rewriter(copy.symbols)
    for op in list(copy.walk()):
        if op.name == "batch_normalization" and op.attr("training_mode"):
            if any(result.use_count for result in op.results[1:]):
                continue
            op._drop_results([0])
            rewriter.set_attribute(op, "training_mode", None)
        elif op.name == "dropout" and in_training(op, context) is not False:
            _set_dropout(op, rewriter, False)
    return copy


def folded_layers(module: Module) -> list[str]:
    """The convolutions with a bias whose result goes to no BatchNormalization: exporters leave that of a convolution
    and a BatchNormalization that they folded."""
    found = []
    for op in module.walk():
        if op.name not in ("conv", "conv_transpose") or len(op.operands) < 3 or op.operands[2] is None:
            continue
        if not any(user.name == "batch_normalization" for user in op.results[0].users):
            found.append(op.location.name or str(op.location))
    return found


def _start_batch_norm(op: Operation, rewriter: Rewriter, context: InferenceContext) -> None:
    rewriter.set_attribute(op, "training_mode", 1)
    op._add_results([value.type for value in op.operand_values[len(op.results) + 2 : 5]])
    for result, type in zip(op.results, infer_types(op, context), strict=True):
        rewriter.set_type(result, type)


def _set_dropout(op: Operation, rewriter: Rewriter, training: bool) -> None:
    ratio = op.input("ratio")
    flag = rewriter.before(op).const(as_data(np.array(True))) if training else None
    before = (*op.operands, None, None)[2]
    rewriter.set_operands(op, [op.operands[0], ratio, *([flag] if training else [])])
    if before is not None and before.producer is not None and before.producer.name == "const" and not before.use_count:
        rewriter.erase(before.producer)
