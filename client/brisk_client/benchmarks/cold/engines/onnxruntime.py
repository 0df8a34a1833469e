"""ONNX Runtime: from the model's file, and from what it optimised and saved before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brisk_client.benchmarks.cold.engines.base import (
    Arrays,
    ColdEngine,
    ColdEngineError,
    Start,
)
from brisk_client.benchmarks.engines import onnxruntime_prepared


class OnnxRuntime(ColdEngine):
    """All optimisations at load, as a plain InferenceSession does it."""

    name = "onnxruntime"

    def import_libraries(self) -> None:
        import onnxruntime  # noqa: F401

    def options(self, threads: int) -> Any:
        """Of the session."""
        return onnxruntime_prepared.session_options(threads)

    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        import onnxruntime

        session = onnxruntime.InferenceSession(
            str(prepared or model), self.options(threads), providers=["CPUExecutionProvider"]
        )
        feeds = dict(inputs)
        return Start(session.run(None, feeds), lambda: session.run(None, feeds))


class OnnxRuntimeAsItComes(OnnxRuntime):
    """The same in a process without the allocator settings and memory that all others get."""

    name = "onnxruntime as it comes"
    as_it_comes = True


class OnnxRuntimeUnoptimised(OnnxRuntime):
    """From the file with optimisation off: loads sooner, computes longer."""

    name = "onnxruntime unoptimised"

    def options(self, threads: int) -> Any:
        return onnxruntime_prepared.unoptimised_options(threads)


class OnnxRuntimePrepared(OnnxRuntime):
    """From the optimised model with external weights, with or without packing them anew."""

    prepares = True

    def __init__(self, *, prepacking: bool) -> None:
        self._prepacking = prepacking
        self.name = "onnxruntime prepared" + ("" if prepacking else " without packing")

    def options(self, threads: int) -> Any:
        return onnxruntime_prepared.prepared_options(threads, prepacking=self._prepacking)

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path:
        import onnxruntime

        target = folder / f"onnxruntime-{onnxruntime.__version__}-optimised"
        try:
            return onnxruntime_prepared.prepare(model, target, threads)
        except Exception as error:
            raise ColdEngineError(f"cannot save it optimised: {error}") from error

    def files(self, model: Path, prepared: Path | None) -> list[Path]:
        assert prepared is not None
        return sorted(file for file in prepared.parent.iterdir() if file.is_file())


class OnnxRuntimeOptimised(OnnxRuntime):
    """From the optimised model in ONNX Runtime's own format, optimisation off at load."""

    name = "onnxruntime own format"
    prepares = True

    def options(self, threads: int) -> Any:
        return onnxruntime_prepared.unoptimised_options(threads)

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path:
        import onnxruntime

        target = folder / f"onnxruntime-{onnxruntime.__version__}.ort"
        if not target.exists():
            options = onnxruntime_prepared.session_options(threads)
            options.optimized_model_filepath = str(target)
            options.add_session_config_entry("session.save_model_format", "ORT")
            onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        return target


# OpenVINO's CPU plugin: compiling the model, and importing it from its model cache.


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
