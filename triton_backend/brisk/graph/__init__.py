"""ONNX files: their tensors in place, element types, static types of a model's inputs and
outputs."""
