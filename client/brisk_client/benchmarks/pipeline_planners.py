"""The planners that `brisk bench pipeline` compares, over the same loaded networks."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from brisk.pipelines import read_pipeline
from brisk.planning import POLICIES, Dag, Latency, Node, Query, Replanning, Variant
from brisk.runtime.pipeline_frame import PipelineFrame, Signature
from brisk.runtime.pipeline_session import PipelineSession, assemble
from brisk.runtime.pipeline_trial import try_pipeline
from brisk.runtime.session import load_session
from brisk_client.benchmarks.pipeline_networks import VARIANTS, TrainedNetworks

PLANNERS = ("static, no early answers", "static", "incremental", "oracle")

WARM_UP = 30


@dataclass(frozen=True, slots=True)
class Served:
    """``labels``: one a crop. ``taken``: a text for each node."""

    labels: np.ndarray
    latency_ns: int
    taken: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bench:
    """``is_early``: by frame, whether the detector's early answer is taken; only the oracle looks.

    ``slowest_ns``: the slowest variants of all nodes together.
    """

    plain: PipelineSession
    early: PipelineSession
    frames: tuple[torch.Tensor, ...]
    is_early: tuple[bool, ...]
    slowest_ns: int

    def serve(self, planner: str, policy: str, objective_ns: int, frame: int) -> Served:
        """One request from its start to its labels; the planning is part of its time."""
        inputs = {"image": self.frames[frame]}
        session = self.plain if planner == PLANNERS[0] else self.early
        replanning = Replanning.INCREMENTAL if planner == "incremental" else Replanning.STATIC
        begun_ns = time.monotonic_ns()
        dag = session.dag(Signature.of(inputs))
        if planner == "oracle":
            policy, dag = "exact", _known(dag, session, inputs, self.is_early[frame])
        query = Query(dag, objective_ns, begun_ns, POLICIES[policy], replanning)
        running = session.begin(inputs, ["label"], query)
        while not running.step():
            pass
        labels = running.results()["label"]
        latency_ns = time.monotonic_ns() - begun_ns
        assert isinstance(labels, torch.Tensor)
        return Served(labels.numpy()[:, 0], latency_ns, _texts(running))


def load_bench(networks: TrainedNetworks, folder: Path, frames: np.ndarray) -> Bench:
    """Load the networks once, make both pipelines of them, try and warm them."""
    described = {
        name: read_pipeline(
            _describe(networks, folder / "repository" / name / "1", name == "early")
        )
        for name in ("plain", "early")
    }
    device, threads = torch.device("cpu"), torch.get_num_threads()
    paths = {path for each in described.values() for _, path in each.networks}
    sessions = {path: load_session(path, device, threads, None) for path in paths}
    while any(session.is_loading for session in sessions.values()):
        time.sleep(0.01)
    made = {}
    for name, description in described.items():
        own = {path: sessions[path] for _, path in description.networks}
        made[name] = assemble(description, own, (name, "1"), time.monotonic_ns())
        for _ in try_pipeline(made[name]):
            pass
    tensors = tuple(torch.from_numpy(frame) for frame in frames)
    is_early = tuple(_is_early(made["early"], image) for image in tensors)
    bench = Bench(made["plain"], made["early"], tensors, is_early, 0)
    for turn in range(WARM_UP):  # every network is run, and its latency learned, with real crops
        for objective_ns in (0, 10**9):
            for planner in PLANNERS[:3]:
                bench.serve(planner, "exact", objective_ns, turn % len(tensors))
    slowest_ns = sum(node.slowest_ns for node in made["plain"].dag(_signature(tensors)).nodes)
    return Bench(made["plain"], made["early"], tensors, is_early, slowest_ns)


def _signature(tensors: tuple[torch.Tensor, ...]) -> Signature:
    return Signature.of({"image": tensors[0]})


def _describe(networks: TrainedNetworks, version: Path, has_early_answer: bool) -> Path:
    version.mkdir(parents=True)
    for file in networks.folder.glob("*.onnx"):
        (version / file.name).write_bytes(file.read_bytes())

    def node(task: str) -> dict[str, Any]:
        return {
            "inputs": {"image": "request.image"},
            "variants": {
                size: {"file": f"{task}_{size}.onnx", "accuracy": networks.accuracies[task][size]}
                for size in VARIANTS
            },
        }

    nodes = {task: node(task) for task in ("kind", "digit", "shape")}
    if has_early_answer:
        tiny = {"file": "kind_tiny.onnx", "confidence": "scores", "at_least": networks.threshold}
        nodes["kind"]["early_answer"] = tiny
    join = {task: f"{task}.scores" for task in nodes}
    nodes["join"] = {"inputs": join, "variants": {"only": {"file": "join.onnx", "accuracy": 1}}}
    path = version / "pipeline.json"
    outputs = {"label": "join.label"}
    path.write_text(json.dumps({"objective_ms": 1000, "nodes": nodes, "outputs": outputs}))
    return path


def _is_early(session: PipelineSession, image: torch.Tensor) -> bool:
    query = Query(session.dag(Signature.of({"image": image})), 10**9, 0, POLICIES["exact"])
    frame = session.begin({"image": image}, ["label"], query)
    while not frame.step():
        pass
    return frame.taken["kind"][1]


def _known(
    dag: Dag, session: PipelineSession, inputs: Mapping[str, torch.Tensor], is_early: bool
) -> Dag:
    """The query with the detector's latency as it will be: the early answer's, or not."""
    early = session.nodes["kind"].early
    assert early is not None
    if not is_early:
        return dag
    certain = Latency.certain(early.expect_ns(Signature.of(inputs)))
    return Dag(
        tuple(
            Node(n.name, tuple(Variant(v.name, v.accuracy, certain) for v in n.variants), n.after)
            if n.name == "kind"
            else n
            for n in dag.nodes
        )
    )


def _texts(frame: PipelineFrame) -> tuple[str, ...]:
    return tuple(
        f"{node}={'early' if was_early else variant}"
        for node, (variant, was_early) in frame.taken.items()
        if node != "join"
    )
