"""The `cpu` target: kernels generated as loops, compiled in the process by LLVM."""
