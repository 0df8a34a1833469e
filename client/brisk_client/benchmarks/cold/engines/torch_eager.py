"""torch, eagerly: the network as a user writes it, its weights mapped from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from brisk_client.benchmarks.cold.engines.base import (
    Arrays,
    ColdEngine,
    EngineUnavailableError,
    Start,
)

NAME_FROM_THE_END = 4


class TorchEager(ColdEngine):
    """Weights of its own (the same shapes), so its answers are others."""

    name = "torch eager"
    prepares = True

    def import_libraries(self) -> None:
        import torch  # noqa: F401

        import brisk_client.benchmarks.eager  # noqa: F401

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path:
        import torch

        from brisk_client.benchmarks.eager import NETWORKS

        name = network_name(model)
        if name not in NETWORKS:
            raise EngineUnavailableError(f"'{name}' has no torch form")
        target = folder / "torch.pt"
        if not target.exists():
            torch.manual_seed(0)
            torch.save(NETWORKS[name]().state_dict(), target)
        return target

    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        import torch

        from brisk_client.benchmarks.eager import NETWORKS

        torch.set_num_threads(threads)
        with torch.device("meta"):
            network = NETWORKS[network_name(model)]().eval()
        weights = torch.load(str(prepared), mmap=True, weights_only=True)
        network.load_state_dict(weights, assign=True)

        def infer() -> list[np.ndarray]:
            with torch.inference_mode():
                return [network(*[torch.from_numpy(array) for array in inputs.values()]).numpy()]

        return Start(infer(), infer)


def network_name(model: Path) -> str:
    """Of the model in .../NAME-bBATCH/entry/1/model.onnx."""
    return model.parts[-NAME_FROM_THE_END].partition("-")[0]
