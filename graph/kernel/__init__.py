"""The levels below ONNX's operators.

"kernel" (domain `kernel`; arithmetic on elements in its regions: `element`): a dozen structured operators on tensors.
"loop" (domains `loop`, `scalar`): loops over scalars, vectors and flat buffers, index arithmetic written out in i64.
Importing this package registers the operators and nothing else.
"""

from . import (
    attention_ops,
    counted_ops,
    element_ops,
    gradient_ops,
    index_ops,
    integer_ops,
    kernel_ops,
    linear_ops,
    loop_ops,
    recurrent_ops,
    row_ops,
    sample_ops,
    scalar_ops,
    unit_ops,
    view_ops,
)

__all__ = [
    "attention_ops", "counted_ops", "element_ops", "gradient_ops", "index_ops", "integer_ops", "kernel_ops",
    "linear_ops", "loop_ops", "recurrent_ops", "row_ops", "sample_ops", "scalar_ops", "unit_ops", "view_ops",
]  # fmt: skip
