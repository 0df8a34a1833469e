"""ONNX files as programs: read, made canonical, optimised. No torch here."""

from brisk.graph.reader import build_program, read_program

__all__ = ["build_program", "read_program"]
