"""ONNX files as programs: enter by ``reader.read_program``. No torch here."""
