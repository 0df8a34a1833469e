"""All engines by name, in the order in which they are shown."""

from __future__ import annotations

from brisk_client.benchmarks.cold.engines.base import ColdEngine
from brisk_client.benchmarks.cold.engines.onnxruntime import (
    OnnxRuntime,
    OnnxRuntimeAsItComes,
    OnnxRuntimeOptimised,
    OnnxRuntimePrepared,
    OnnxRuntimeUnoptimised,
    OpenVino,
    OpenVinoCached,
)
from brisk_client.benchmarks.cold.engines.segments import BriskSegments
from brisk_client.benchmarks.cold.engines.torch_eager import AotInductor, TorchEager

BASE = "onnxruntime"
"""What every engine's cold start is compared with."""

PREPARED, UNPREPARED = "brisk", "brisk unprepared"
"""Brisk with all it has: from an artefact, and straight from the ONNX file."""

PREPARED_PEERS = ("onnxruntime prepared", "onnxruntime prepared without packing")
"""ONNX Runtime prepared by its own means; for each model the one that starts sooner counts."""

BARE_PEERS = (BASE, "onnxruntime unoptimised")
"""ONNX Runtime from the bare file; for each model the one that starts sooner counts."""

_ENGINES: tuple[ColdEngine, ...] = (
    BriskSegments(PREPARED, has_artefact=True),
    BriskSegments(UNPREPARED, has_artefact=False),
    OnnxRuntime(),
    OnnxRuntimeAsItComes(),
    OnnxRuntimeUnoptimised(),
    OnnxRuntimePrepared(prepacking=True),
    OnnxRuntimePrepared(prepacking=False),
    OnnxRuntimeOptimised(),
    OpenVino(),
    OpenVinoCached(),
    TorchEager(),
    AotInductor(),
)


def engine_names() -> list[str]:
    return [engine.name for engine in _ENGINES]


def engine_of(name: str) -> ColdEngine:
    """Raises LookupError naming those there are."""
    for engine in _ENGINES:
        if engine.name == name:
            return engine
    raise LookupError(f"there is no engine '{name}'; there are: {', '.join(engine_names())}")


BESIDE_LOAD = (PREPARED, UNPREPARED, BASE)
"""Those of NNV12's Fig. 11."""

FROM_DISK = (PREPARED, UNPREPARED, BASE, *PREPARED_PEERS, "openvino cached")
"""Those whose time from the disk is compared with reading the same bytes."""

LARGER_BATCHES = (PREPARED, UNPREPARED, BASE)
"""Those of larger batches, and what they are compared with."""

QUICK = (PREPARED, UNPREPARED, *BARE_PEERS, *PREPARED_PEERS, "openvino cached", TorchEager.name)
"""Those of a quick run: Brisk as its runtime starts models, and what it is compared with."""


def default_engines(quick: bool) -> list[str]:
    """Those of a plain run: QUICK, or all."""
    return list(QUICK) if quick else engine_names()
