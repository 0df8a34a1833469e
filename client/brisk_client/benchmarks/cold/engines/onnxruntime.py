"""ONNX Runtime: at its defaults, and from a model that it optimised and saved before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brisk_client.benchmarks.cold.engines.base import Arrays, ColdEngine, Start


class OnnxRuntime(ColdEngine):
    """All optimisations at load, as a plain InferenceSession does it."""

    name = "onnxruntime"

    def import_libraries(self) -> None:
        import onnxruntime  # noqa: F401

    def begin(self) -> None:
        import onnxruntime

        from brisk.execution.practice_network import build_practice, practice_inputs

        session = onnxruntime.InferenceSession(
            build_practice().SerializeToString(), _options(1), providers=["CPUExecutionProvider"]
        )
        session.run(None, practice_inputs())

    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        import onnxruntime

        options = _options(threads)
        if prepared is not None:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(
            str(prepared or model), options, providers=["CPUExecutionProvider"]
        )
        feeds = dict(inputs)
        return Start(session.run(None, feeds), lambda: session.run(None, feeds))


class OnnxRuntimeHugePages(OnnxRuntime):
    """The same with the allocator settings and the memory of a worker of Brisk's runtime."""

    name = "onnxruntime huge pages"

    def begin(self) -> None:
        from brisk.execution.heap import populate, reserve

        populate(reserve())
        super().begin()


class OnnxRuntimeOptimised(OnnxRuntime):
    """From the optimised model in ONNX Runtime's own format, optimisation off at load."""

    name = "onnxruntime optimised"
    prepares = True

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path:
        import onnxruntime

        target = folder / "model.ort"
        if not target.exists():
            options = _options(threads)
            options.optimized_model_filepath = str(target)
            options.add_session_config_entry("session.save_model_format", "ORT")
            onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        return target


def _options(threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options
