"""A small model that its stub computes once it is hot, in a running server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from brisk.triton.launch import TritonServer
from brisk_client.inference import InferenceClient
from support.runtime.runtime_processes import hurry_helpers
from support.server.entries import make_model
from support.server.running import runtime_directory
from support.server.scraping import scrape, value
from support.waiting import TIMED, wait_until

WIDTH = 16
WEIGHTS = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32)
HOT = 250
"""Requests behind which a stub is offered its model."""

COMPUTED = "brisk_computed_in_stub_total"
ONE_INSTANCE = "instance_group [ { count: 1 kind: KIND_CPU } ] "
BATCHING = "dynamic_batching { max_queue_delay_microseconds: 30000 } "
WIDE = f"data_type: TYPE_FP32 dims: [ {WIDTH} ]"
SIGNATURE = (
    f'backend: "brisk" max_batch_size: 8 {ONE_INSTANCE} '
    f'input [ {{ name: "x" {WIDE} }} ] output [ {{ name: "y" {WIDE} }} ] '
)


def small() -> onnx.ModelProto:
    shape = ("batch", WIDTH)
    product = helper.make_node("MatMul", ["x", "w"], ["p"])
    nodes = [product, helper.make_node("Relu", ["p"], ["y"])]
    ends = (("x", TensorProto.FLOAT, shape), ("y", TensorProto.FLOAT, shape))
    return make_model(nodes, ends[:1], ends[1:], [("w", WEIGHTS)])


def rows(count: int = 1, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)


def expected(x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ WEIGHTS, 0)


def environment_of(folder: Path) -> dict[str, str]:
    return {
        "BRISK_METRICS_INTERVAL_S": "0.2",
        "BRISK_CACHE_DIR": str(folder / "cache"),
        "BRISK_ARTEFACTS": "build",
    }


def computed(server: TritonServer, name: str) -> float:
    return value(scrape(server), COMPUTED, model=name)


def heat(
    server: TritonServer,
    client: InferenceClient,
    name: str = "small",
    inputs: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Ask until the model's stub computes it. Entries with a delay want full batches."""
    asked = {"x": rows()} if inputs is None else dict(inputs)
    if computed(server, name) > 0:
        return
    for _ in range(HOT):
        client.infer(name, asked)

    def is_so() -> bool:
        hurry_helpers(runtime_directory(server))
        for _ in range(20):
            client.infer(name, asked)
        return computed(server, name) > 0

    with TIMED:
        wait_until(is_so, "a stub that computes", every_s=0.1)
