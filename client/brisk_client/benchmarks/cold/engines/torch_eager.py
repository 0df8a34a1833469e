"""torch, eagerly: the network as a user writes it, its weights mapped from a file."""

from __future__ import annotations

from pathlib import Path

from brisk_client.benchmarks.cold.engines.base import (
    Arrays,
    ColdEngine,
    ColdEngineError,
    Start,
)

NAME_FROM_THE_END = 4


class TorchEager(ColdEngine):
    """Weights of its own (the same shapes), so its answers are others."""

    name = "torch eager"
    prepares = True

    def import_libraries(self) -> None:
        import torch  # noqa: F401

        import brisk_client.benchmarks.engines.eager  # noqa: F401

    def begin(self, threads: int) -> None:
        run_unrelated(threads)

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path:
        from brisk_client.benchmarks.engines.eager import saved_weights

        try:
            return saved_weights(network_name(model), folder)
        except LookupError as error:
            raise ColdEngineError(str(error)) from error

    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        import torch

        from brisk_client.benchmarks.engines.eager import inference, mapped_network

        assert prepared is not None
        torch.set_num_threads(threads)
        infer = inference(mapped_network(network_name(model), prepared))
        return Start(infer(inputs), lambda: infer(inputs))


def run_unrelated(threads: int) -> None:
    """Make a small network and run it, as the other engines start an unrelated model."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    layers = (nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.LazyLinear(16))
    with torch.inference_mode():
        nn.Sequential(*layers).eval()(torch.zeros(1, 3, 32, 32))


def network_name(model: Path) -> str:
    """Of the model in .../NAME-bBATCH/entry/1/model.onnx; a model of elsewhere has none.

    Raises LookupError.
    """
    if model.parts[-3:] != ("entry", "1", "model.onnx"):
        raise LookupError("no torch form was written of it")
    return model.parts[-NAME_FROM_THE_END].partition("-")[0]


# AOTInductor: the network compiled ahead of time to a package, its weights frozen into it.


class AotInductor(ColdEngine):
    """As torch's eager engine: weights of its own, other answers. Compiling takes its time."""

    name = "torch aotinductor"
    prepares = True

    def import_libraries(self) -> None:
        import torch._inductor.codecache
        import torch._inductor.cpp_builder
        import torch._inductor.package
        import torch.utils.cpp_extension  # noqa: F401

    def begin(self, threads: int) -> None:
        """Eagerly: to compile an unrelated model takes half a minute."""
        run_unrelated(threads)

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path:
        import torch
        from torch._inductor import aoti_compile_and_package, config

        from brisk_client.benchmarks.engines.eager import network_named

        target = folder / "torch.pt2"
        if not target.exists():
            torch.manual_seed(0)
            examples = tuple(torch.from_numpy(array) for array in inputs.values())
            with torch.inference_mode(), config.patch(freezing=True):
                try:
                    network = network_named(network_name(model)).eval()
                except LookupError as error:
                    raise ColdEngineError(str(error)) from error
                exported = torch.export.export(network, examples)
                aoti_compile_and_package(exported, package_path=str(target))
        return target

    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        import torch
        from torch._inductor import aoti_load_package

        from brisk_client.benchmarks.engines.eager import inference

        torch.set_num_threads(threads)
        infer = inference(aoti_load_package(str(prepared)))
        return Start(infer(inputs), lambda: infer(inputs))
