"""ONNX Runtime, imported once, without its telemetry."""

from __future__ import annotations

import functools
import os
from types import ModuleType

from brisk.errors import InvalidConfigurationError


@functools.cache
def onnxruntime() -> ModuleType:
    """The package. Raises InvalidConfigurationError where it is not installed.

    Official builds from 1.29 on send telemetry unless the variable is set before the import.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
    except ImportError as error:
        raise InvalidConfigurationError(
            f"onnxruntime cannot be imported in this Python: {error}; install it beside torch"
        ) from error
    onnxruntime.set_default_logger_severity(4)  # errors are raised; warnings are for developers
    return onnxruntime


def is_installed() -> bool:
    """Whether models can be computed by ONNX Runtime here."""
    try:
        onnxruntime()
    except InvalidConfigurationError:
        return False
    return True
