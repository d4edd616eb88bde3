"""All planners of kernels; importing this registers them."""

from . import (
    plan_attention,
    plan_attention_grad,
    plan_concat,
    plan_conv_weight,
    plan_counted,
    plan_gemm,
    plan_integer,
    plan_map,
    plan_max_pool,
    plan_moves,
    plan_recurrent,
    plan_resample,
    plan_row_map,
    plan_rows,
    plan_sample,
    plan_table,
    plan_windows,
)

__all__ = [
    "plan_attention", "plan_attention_grad", "plan_concat", "plan_conv_weight", "plan_counted", "plan_gemm",
    "plan_integer", "plan_map", "plan_max_pool", "plan_moves", "plan_recurrent", "plan_resample", "plan_row_map",
    "plan_rows", "plan_sample", "plan_table", "plan_windows",
]  # fmt: skip
