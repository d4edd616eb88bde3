"""What ONNX's operators are in kernels: rules for the pass `lower-to-kernels`, one file per family."""
