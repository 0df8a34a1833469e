"""AOTInductor: the network compiled ahead of time to a package, its weights frozen into it."""

from __future__ import annotations

from pathlib import Path

from brisk_client.benchmarks.cold.engines.base import (
    Arrays,
    ColdEngine,
    EngineUnavailableError,
    Start,
)
from brisk_client.benchmarks.cold.engines.torch_eager import network_name, run_unrelated


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
                    raise EngineUnavailableError(str(error)) from error
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
