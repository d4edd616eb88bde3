"""The interpreter of the onnx level: slow, plain, and independent of generated code."""
