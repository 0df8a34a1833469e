"""ONNX files and their tensors. Rewrites nothing."""
