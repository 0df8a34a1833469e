"""The engines that are measured in process: the same steps for each, from file to answers."""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from brisk_bench.engines.process import EngineUnavailableError, run_apart

Arrays: TypeAlias = Mapping[str, np.ndarray]

Infer: TypeAlias = Callable[[Arrays], "list[Any]"]
"""One inference: inputs by name, outputs in the model's order, all numpy arrays."""

BASE = "onnxruntime"
"""The engine that all others are compared with: ONNX Runtime at its defaults."""

BRISK, UNPREPARED = "brisk", "brisk unprepared"
"""Brisk with a model that it has prepared, and straight from the ONNX file."""

PREPARED_PEERS = ("onnxruntime prepared", "onnxruntime prepared without packing")
"""ONNX Runtime with what it prepared itself; for each model the side that starts sooner counts."""

BARE_PEERS = (BASE, "onnxruntime unoptimised")
"""ONNX Runtime from the bare file; for each model the side that starts sooner counts."""

SPINNING = "onnxruntime spinning"
"""ONNX Runtime with its default: idle threads wait actively for the next operator."""

TORCH = "torch eager"
"""The same network, if it is also written in torch; its weights, so its answers, are others."""

PREPARED_MODEL, PREPARED_WEIGHTS = "model.onnx", "model.weights"
"""The names of the files of a model that ONNX Runtime has prepared."""


def _stay() -> None:
    """Return at once: nothing goes on in the background."""


_ONNXRUNTIME, _OPENVINO, _TORCH = (
    partial(importlib.import_module, name)
    for name in ("onnxruntime", "openvino", "brisk_bench.engines.eager")
)


@dataclass(frozen=True, slots=True)
class Opened:
    """A model that can run.

    ``settle``: returns when nothing goes on in the background any more and each inference is as
      fast as it will be.
    """

    infer: Infer
    settle: Callable[[], None] = _stay


@dataclass(frozen=True, slots=True)
class Engine:
    """The steps by which an engine is measured.

    ``open``: takes the model, what ``prepare`` made of it (None: nothing), and threads.
    ``prepare``: makes ahead of time, in a folder, what is kept between starts. Both raise the
      engine's own errors if they cannot.
    ``imports``: all that a server has imported before any model comes; computes nothing, as
      processes are forked then.
    ``as_it_comes``: leaves out the allocator's settings and the memory that all others get.
    """

    open: Callable[[Path, Path | None, int], Opened]
    prepare: Callable[[Path, Path, int], Path] | None = None
    imports: Callable[[], object] = _ONNXRUNTIME
    as_it_comes: bool = False


# Brisk, as its runtime starts models: segments that ONNX Runtime computes.


def import_brisk() -> None:
    from brisk.runtime.ready import import_everything
    from brisk.runtime.sessions.open_session import import_what_files_need

    import_everything("cpu")
    import_what_files_need()


def prepare_brisk(model: Path, folder: Path, threads: int) -> Path:
    """Prepare in the cache directory, not in ``folder``, unless it is done; return the path."""
    from brisk.segments.prepared.form import find_prepared
    from brisk.segments.prepared.preparation import is_prepared, prepare

    if is_prepared(model, threads) and (artefact := find_prepared(model)) is not None:
        return artefact
    return prepare(model, threads).path


def open_brisk(model: Path, prepared: Path | None, threads: int) -> Opened:
    from brisk.segments.frame import run_serially
    from brisk.segments.model.sources import BareModel
    from brisk.segments.prepared.form import PreparedModel
    from brisk.segments.source import Source
    from brisk.segments.starting import start_lanes, start_segments

    source: Source
    if prepared is not None:
        source = PreparedModel(prepared, model, threads)
    else:
        source = BareModel(model.resolve(), threads, is_awaited=True)
        source.check()
    starting = start_segments(source)
    start_lanes(starting.table, threads)

    def settle() -> None:
        starting.table.wait(60.0)
        starting.load_warm(lambda: True)

    return Opened(lambda inputs: list(run_serially(starting.program, inputs).values()), settle)


# ONNX Runtime, and its own means to prepare a model: optimised once and saved with its weights in
# a file of their own, which a later session maps, made with optimisation off and with or without
# packing the weights anew: which of the two starts sooner depends on the model.


def session_options(threads: int, *, optimises: bool = True, packs: bool = True) -> Any:
    """Return ONNX Runtime's default options with so many threads; only errors are logged."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if not optimises:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not packs:
        options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def open_session(model: Path, options: Any) -> Any:
    """Open a session on the CPU."""
    import onnxruntime

    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def open_onnxruntime(
    model: Path, prepared: Path | None, threads: int, *, spins: bool = True, **settings: bool
) -> Opened:
    """Open a session with ``settings`` of ``session_options``, of ``prepared`` if given."""
    options = session_options(threads, **settings)
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spins)))
    session = open_session(prepared / PREPARED_MODEL if prepared else model, options)
    return Opened(lambda inputs: list(session.run(None, dict(inputs))))


def prepare_onnxruntime(model: Path, folder: Path, threads: int) -> Path:
    """Return a folder with PREPARED_MODEL and PREPARED_WEIGHTS, made unless it exists."""
    import onnxruntime

    target = folder / f"onnxruntime-{onnxruntime.__version__}-optimised"
    if not target.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".optimising-") as draft:
            options = session_options(threads)
            options.optimized_model_filepath = f"{draft}/{PREPARED_MODEL}"
            where = "session.optimized_model_external_initializers"
            options.add_session_config_entry(f"{where}_file_name", PREPARED_WEIGHTS)
            options.add_session_config_entry(f"{where}_min_size_in_bytes", "1024")
            open_session(model, options)
            shutil.copytree(draft, target)
    return target


# OpenVINO's CPU plugin, tuned for latency, in FP32 as the others are.


def open_openvino(model: Path, prepared: Path | None, threads: int) -> Opened:
    """Compile the model, or import it from a cache that holds it compiled."""
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    if prepared is not None:
        settings |= {"CACHE_DIR": str(prepared), "CACHE_MODE": "OPTIMIZE_SPEED"}
    compiled = openvino.Core().compile_model(str(model), "CPU", settings)
    request = compiled.create_infer_request()

    def infer(inputs: Arrays) -> list[Any]:
        results = request.infer(dict(inputs))
        return [results[output] for output in compiled.outputs]

    return Opened(infer)


def prepare_openvino(model: Path, folder: Path, threads: int) -> Path:
    target = folder / f"openvino-{threads}"
    if not target.exists():
        target.mkdir()
        open_openvino(model, target, threads)
    return target


# torch: the network as its user writes it.


def open_torch(model: Path, prepared: Path | None, threads: int) -> Opened:
    """Open the model written in torch. Raises LookupError if there is none."""
    import torch

    from brisk_bench.engines.eager import torch_network

    torch.set_num_threads(threads)
    network = torch_network(model, prepared)

    def infer(inputs: Arrays) -> list[Any]:
        with torch.inference_mode():
            return [network(*[torch.from_numpy(array) for array in inputs.values()]).numpy()]

    return Opened(infer)


def prepare_torch(model: Path, folder: Path, threads: int) -> Path:
    """Return a file of weights, to be mapped."""
    from brisk_bench.engines.eager import save_weights

    return save_weights(model, folder)


WARM: Mapping[str, Engine] = {
    BRISK: Engine(open_brisk),
    BASE: Engine(partial(open_onnxruntime, spins=False)),
    SPINNING: Engine(open_onnxruntime),
    "openvino": Engine(open_openvino),
    TORCH: Engine(open_torch),
}
"""The engines whose warm inferences are measured."""

_UNOPTIMISED = partial(open_onnxruntime, optimises=False)

COLD: Mapping[str, Engine] = {
    BRISK: Engine(open_brisk, prepare_brisk, import_brisk),
    UNPREPARED: Engine(open_brisk, None, import_brisk),
    BASE: Engine(open_onnxruntime),
    "onnxruntime as it comes": Engine(open_onnxruntime, as_it_comes=True),
    BARE_PEERS[1]: Engine(_UNOPTIMISED),
    PREPARED_PEERS[0]: Engine(_UNOPTIMISED, prepare_onnxruntime),
    PREPARED_PEERS[1]: Engine(partial(_UNOPTIMISED, packs=False), prepare_onnxruntime),
    "openvino": Engine(open_openvino, None, _OPENVINO),
    "openvino cached": Engine(open_openvino, prepare_openvino, _OPENVINO),
    TORCH: Engine(open_torch, prepare_torch, _TORCH),
}
"""The engines whose cold starts are measured, in the order in which they are shown."""


@cache
def optimised_apart(model: Path, folder: Path, threads: int) -> Path:
    """Run ``prepare_onnxruntime`` in a process of its own. Raises EngineUnavailableError."""
    try:
        return Path(run_apart(__name__, model, folder, threads).splitlines()[-1])
    except EngineUnavailableError as error:
        raise EngineUnavailableError(
            f"onnxruntime cannot save {model.name} optimised: {error}"
        ) from error


if __name__ == "__main__":
    print(prepare_onnxruntime(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
