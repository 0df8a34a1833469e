"""OpenVINO's CPU plugin: compiling the model, and importing it from its model cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brisk_client.benchmarks.cold.engines.base import Arrays, ColdEngine, Start


class OpenVino(ColdEngine):
    """Tuned for latency, in FP32 as the others are."""

    name = "openvino"

    def import_libraries(self) -> None:
        import openvino  # noqa: F401

    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        import openvino

        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        if prepared is not None:
            settings |= {"CACHE_DIR": str(prepared), "CACHE_MODE": "OPTIMIZE_SPEED"}
        core = openvino.Core()
        compiled = core.compile_model(str(model), "CPU", settings)
        request = compiled.create_infer_request()
        feeds = dict(inputs)

        def infer() -> list[Any]:
            results = request.infer(feeds)
            return [results[output] for output in compiled.outputs]

        return Start(infer(), infer)


class OpenVinoCached(OpenVino):
    """With ``CACHE_DIR`` filled by a start before; the whole compiled model is kept."""

    name = "openvino cached"
    prepares = True

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path:
        target = folder / f"openvino-{threads}"
        if not target.exists():
            target.mkdir()
            self.start(model, target, inputs, threads)
        return target
