"""Brisk: a Triton Inference Server backend with one shared runtime per device."""

__version__ = "0.1.0"
