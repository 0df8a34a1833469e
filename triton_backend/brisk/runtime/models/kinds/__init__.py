"""Sessions by what computes them: ONNX Runtime or torch."""
