"""The entry point that Triton's Python backend imports; it delegates and decides nothing."""

from __future__ import annotations

from typing import Any

from brisk.stub.runtime_client.runtime_process import start_early

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
