"""ONNX files: their tensors in place, element types, static types of what a model takes."""
