"""The engines that are measured warm, each behind one function: arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from brisk_client.benchmarks.engines.onnxruntime_prepared import open_session, session_options

Infer: TypeAlias = Callable[[Mapping[str, np.ndarray]], "list[Any]"]
"""One inference: inputs by name, outputs in the model's order, all numpy arrays."""


def open_segments(model: Path, threads: int) -> Infer:
    """Segments that ONNX Runtime computes, warm, in this process: what a worker does."""
    from brisk.segments.frame import run_serially
    from brisk.segments.model.sources import BareModel
    from brisk.segments.starting import start_segments

    starting = start_segments(BareModel(model.resolve(), threads))
    starting.table.work("here")
    starting.load_warm(lambda: True)
    program = starting.program
    return lambda inputs: list(run_serially(program, inputs).values())


def open_onnxruntime(model: Path, threads: int, *, spinning: bool = False) -> Infer:
    """ONNX Runtime's CPU provider at its default optimisation.

    ``spinning``: its default, idle threads that wait actively for the next operator.
    """
    options = session_options(threads)
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    session = open_session(model, options)
    return lambda inputs: list(session.run(None, dict(inputs)))


def open_openvino(model: Path, threads: int, settings: Mapping[str, str] | None = None) -> Infer:
    """OpenVINO's CPU plugin, tuned for latency, in FP32 as the others are."""
    import openvino

    chosen = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        **(settings or {}),
    }
    compiled = openvino.Core().compile_model(str(model), "CPU", chosen)
    request = compiled.create_infer_request()

    def infer(inputs: Mapping[str, np.ndarray]) -> list[Any]:
        results = request.infer(dict(inputs))
        return [results[output] for output in compiled.outputs]

    return infer


def open_torch(model: Path, threads: int) -> Infer:
    """The same network written in torch and run eagerly, with weights of its own.

    Raises LookupError where there is none for this model.
    """
    import torch

    from brisk_client.benchmarks.engines.eager import eager_network, inference

    torch.set_num_threads(threads)
    return inference(eager_network(model))


ENGINES: Mapping[str, Callable[[Path, int], Infer]] = {
    "brisk": open_segments,
    "onnxruntime": open_onnxruntime,
    "onnxruntime spinning": partial(open_onnxruntime, spinning=True),
    "openvino": open_openvino,
    "torch eager": open_torch,
}
