"""ONNX files as programs: read, made canonical, optimised. No torch here."""
