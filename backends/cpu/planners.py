"""Which module plans which kernels. It is imported when a model has one of them: all take a tenth of a second."""

from __future__ import annotations

from importlib import import_module

# Kernels of the level "kernel" by module, without what their names begin with.
MODULES: dict[str, tuple[str, ...]] = {
    "plan_attention": ("attention",),
    "plan_attention_grad": ("attention_grad",),
    "plan_concat": ("concat",),
    "plan_conv_transpose": ("conv_transpose",),
    "plan_conv_weight": ("conv_weight",),
    "plan_counted": ("nonzero", "suppress", "unique"),
    "plan_gemm": ("gemm",),
    "plan_integer": ("integer_gemm", "integer_conv"),
    "plan_linear": ("determinant",),
    "plan_map": ("map",),
    "plan_max_pool": ("max_pool", "max_pool_grad"),
    "plan_moves": (
        "tile", "pad", "gather", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd", "arg_extreme",
        "scan", "sort",
    ),
    "plan_recurrent": ("recurrent",),
    "plan_resample": ("resample",),
    "plan_row_map": ("row_map",),
    "plan_rows": ("rows", "reduce"),
    "plan_sample": ("roi_align", "max_roi_pool", "sample", "columns_to_image"),
    "plan_table": ("table",),
    "plan_windows": ("conv", "pool"),
}  # fmt: skip
_PREFIX = "kernel."
_MODULE_OF = {f"{_PREFIX}{kernel}": module for module, kernels in MODULES.items() for kernel in kernels}


def register(name: str) -> None:
    """Have the planner of a kernel registered, if there is one."""
    module = _MODULE_OF.get(name)
    if module is not None:
        import_module(f".{module}", __package__)
