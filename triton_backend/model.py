"""The entry point that Triton's Python backend imports; it delegates and decides nothing."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any


def _import_what_lies_beside_this_file_first() -> None:
    """Triton's stub looks for modules in the server's working directory first, where anybody's
    files may lie, and in this file's folder last, behind any other Brisk that Python has.
    """
    folder = os.path.dirname(os.path.abspath(__file__))
    working = ""
    with contextlib.suppress(OSError):  # it has been removed
        working = os.getcwd()
    sys.path[:] = [folder, *(each for each in sys.path if each not in ("", working, folder))]


_import_what_lies_beside_this_file_first()

from brisk.stub.runtime_client.runtime_process import start_early  # noqa: E402

start_early()  # which takes longer than all that follows

from brisk.stub.backend import ModelInstance, auto_complete  # noqa: E402


class TritonPythonModel:
    """One model instance; its life is ``brisk.stub.backend``'s matter."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        return auto_complete(auto_complete_model_config)

    def initialize(self, args: dict[str, str]) -> None:
        self._instance = ModelInstance(args)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        return self._instance.execute(requests)

    def finalize(self) -> None:
        self._instance.finalize()
