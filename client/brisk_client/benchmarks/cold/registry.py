"""All engines by name, in the order in which they are shown."""

from __future__ import annotations

from brisk_client.benchmarks.cold.engines.aotinductor import AotInductor
from brisk_client.benchmarks.cold.engines.base import ColdEngine
from brisk_client.benchmarks.cold.engines.brisk import BriskScheme, BriskSerial
from brisk_client.benchmarks.cold.engines.onnxruntime import (
    OnnxRuntime,
    OnnxRuntimeHugePages,
    OnnxRuntimeOptimised,
)
from brisk_client.benchmarks.cold.engines.openvino import OpenVino, OpenVinoCached
from brisk_client.benchmarks.cold.engines.torch_eager import TorchEager

BASE = "onnxruntime"
"""What every engine's cold start is compared with."""

PREPARED, UNPREPARED = "brisk", "brisk unprepared"
"""Brisk with all it has: from an artefact, and straight from the ONNX file."""

_ENGINES: tuple[ColdEngine, ...] = (
    BriskScheme("brisk", has_artefact=True, name=PREPARED),
    BriskScheme("brisk", has_artefact=False, name=UNPREPARED),
    BriskScheme("baseline", has_artefact=False),
    BriskScheme("nnv12_k", has_artefact=False),
    BriskScheme("nnv12_kc", has_artefact=True),
    BriskScheme("nnv12", has_artefact=True),
    BriskScheme("pask_i", has_artefact=False),
    BriskScheme("pask_r", has_artefact=False),
    BriskScheme("pask", has_artefact=False),
    BriskScheme("ideal", has_artefact=False),
    BriskSerial(),
    OnnxRuntime(),
    OnnxRuntimeHugePages(),
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


def default_engines(quick: bool) -> list[str]:
    """Those of a plain run: all, without those that take long to prepare if ``quick``."""
    return [name for name in engine_names() if not (quick and name == AotInductor.name)]
