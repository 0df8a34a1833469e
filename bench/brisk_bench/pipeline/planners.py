"""The planners that `brisk bench pipeline` compares, over the same loaded networks."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from brisk.exits.files.versions import caches_file
from brisk.pipelines import read_pipeline
from brisk.pipelines.query import POLICIES, Query, QueryNode, Replanning
from brisk.runtime.pipelines.assembly import WHOLE_MODEL, assemble, try_pipeline
from brisk.runtime.pipelines.latency import Shapes
from brisk.runtime.pipelines.networks import NetworkRun, PipelineNetwork, shapes_of
from brisk.runtime.pipelines.session import PipelineFrame, PipelineSession
from brisk.runtime.sessions.open_session import load_session
from brisk.runtime.sessions.segment_session import SegmentSession
from brisk.runtime.sessions.served_caches import read_version
from brisk.runtime.sessions.session import Session
from brisk.segments.starting import usable_cores
from brisk_bench.pipeline.networks import PLATE, TrainedNetworks

PLANNERS = ("static, no early answers", "static", "incremental", "oracle")

OUTPUTS = ("number", "label")

WARM_UP = 30
TIMED = 15


@dataclass(frozen=True, slots=True)
class Served:
    """One answered request.

    ``labels``: the plate's, then one a crop.
    ``taken``: a text for each node.
    """

    labels: np.ndarray
    latency_ns: int
    taken: tuple[str, ...]


@dataclass(slots=True)
class PlannerBench:
    """Both pipelines, without and with caches, and the requests to measure.

    ``reading_ns``: by frame, what each reader takes with its caches; only the oracle looks.
    ``spared``: by reader, the share of the plates that caches answer.
    ``slowest_ns``: the slowest variants of all nodes together.
    """

    plain: PipelineSession
    early: PipelineSession
    frames: tuple[Mapping[str, np.ndarray], ...]
    reading_ns: tuple[Mapping[str, int], ...] = ()
    spared: Mapping[str, float] = field(default_factory=dict)
    slowest_ns: int = 0

    def serve(self, planner: str, policy: str, objective_ns: int, frame: int) -> Served:
        """Serve one request from its start to its labels; the planning is part of its time."""
        inputs = self.frames[frame]
        session = self.plain if planner == PLANNERS[0] else self.early
        replanning = Replanning.INCREMENTAL if planner == "incremental" else Replanning.STATIC
        begun_ns = time.monotonic_ns()
        nodes = session.query_nodes(shapes_of(inputs))
        if planner == "oracle":
            policy, nodes = "exact", _known(nodes, self.reading_ns[frame])
        query = Query(nodes, objective_ns, begun_ns, POLICIES[policy], replanning)
        running = PipelineFrame(session, inputs, OUTPUTS, query)
        while not running.step():
            pass
        labels = [np.asarray(running.results()[name])[:, 0] for name in OUTPUTS]
        latency_ns = time.monotonic_ns() - begun_ns
        return Served(np.concatenate(labels), latency_ns, _texts(running))


def load_bench(
    networks: TrainedNetworks,
    folder: Path,
    frames: Sequence[Mapping[str, np.ndarray]],
    others: Sequence[Mapping[str, np.ndarray]],
) -> PlannerBench:
    """Load the networks once, make both pipelines of them, try and warm them.

    ``others`` warm them and are not measured: the pipelines learn from them how long networks
    take.
    """
    described = {
        name: read_pipeline(
            _describe(networks, folder / "repository" / name / "1", name == "early")
        )
        for name in ("plain", "early")
    }
    threads = usable_cores()
    paths = {path for each in described.values() for _, path in each.networks}
    sessions = {path: load_session(path, "cpu", threads, None) for path in paths}
    for path, session in sessions.items():
        _settle(path, session)
    pipelines = {}
    for name, description in described.items():
        own = {path: sessions[path] for _, path in description.networks}
        pipelines[name] = assemble(description, own, (name, "1"), time.monotonic_ns())
        for _ in try_pipeline(pipelines[name]):
            pass
    tensors, warming = tuple(frames), tuple(others)
    bench = PlannerBench(pipelines["plain"], pipelines["early"], warming)
    for turn in range(WARM_UP):  # every network is run, and its latency learned, with real crops
        for objective_ns in (0, 10**9):
            for planner in PLANNERS[:3]:
                bench.serve(planner, "exact", objective_ns, turn % len(warming))
    readings = [_read(pipelines["early"], inputs) for inputs in tensors]
    slowest_ns = sum(
        max(_takes_ns(network, warming[0][_source(name)]) for network in node.variants.values())
        for name, node in pipelines["plain"].nodes.items()
        if name != "join"  # which takes next to no time
    )
    bench.frames = tensors
    bench.reading_ns = tuple({name: ns for name, (ns, _) in each.items()} for each in readings)
    bench.spared = {
        name: float(np.mean([each[name][1] for each in readings])) for name in readings[0]
    }
    bench.slowest_ns = int(slowest_ns)
    return bench


def _settle(path: Path, session: Session) -> None:
    """Do what upkeep does: load all segments, warm ones, then the caches."""
    while session.is_loading:
        time.sleep(0.01)
    session.load_warm(lambda: True)
    if isinstance(session, SegmentSession):
        caches = read_version(path, caches_file(path), session.starting, session.threads)
        session.caches.bring(caches)


def _describe(networks: TrainedNetworks, version: Path, has_caches: bool) -> Path:
    version.mkdir(parents=True)
    for pattern in ("*.onnx", "*.caches")[: 1 + has_caches]:
        for file in networks.folder.glob(pattern):
            (version / file.name).write_bytes(file.read_bytes())

    def node(task: str) -> dict[str, Any]:
        return {
            "inputs": {"image": f"request.{_source(task)}"},
            "variants": {
                size: {"file": f"{task}_{size}.onnx", "accuracy": accuracy}
                for size, accuracy in networks.accuracies[task].items()
            },
        }

    nodes = {task: node(task) for task in networks.accuracies}
    join = {}
    for task, sizes in networks.accuracies.items():
        graph = onnx.load(version / f"{task}_{next(iter(sizes))}.onnx").graph
        join[task] = f"{task}.{graph.output[0].name}"
    nodes["join"] = {"inputs": join, "variants": {"only": {"file": "join.onnx", "accuracy": 1}}}
    path = version / "pipeline.json"
    outputs = {name: f"join.{name}" for name in OUTPUTS}
    path.write_text(json.dumps({"objective_ms": 1000, "nodes": nodes, "outputs": outputs}))
    return path


def _source(task: str) -> str:
    """Return the request's tensor that a node reads."""
    return "plate" if task == PLATE else "image"


def _run(
    network: PipelineNetwork, image: np.ndarray, shapes: Shapes, agreement: float | None
) -> tuple[int, NetworkRun]:
    """Run a network to its end; return how long that took, and the run."""
    outputs = [each.name for each in network.session.outputs]
    run = NetworkRun(network, {"image": image}, outputs, shapes, agreement)
    begun_ns = time.monotonic_ns()
    while not run.step():
        pass
    return time.monotonic_ns() - begun_ns, run


def _takes_ns(network: PipelineNetwork, image: np.ndarray) -> float:
    """Return the median of some whole runs: objectives must not follow a moment's noise."""
    shapes = shapes_of({"image": image})
    return statistics.median(_run(network, image, shapes, WHOLE_MODEL)[0] for _ in range(TIMED))


def _read(
    session: PipelineSession, inputs: Mapping[str, np.ndarray]
) -> dict[str, tuple[int, bool]]:
    """Return how long each reader takes for the plate, and whether caches answer it."""
    readings = {}
    for name, network in session.nodes[PLATE].variants.items():
        taken_ns, run = _run(network, inputs["plate"], shapes_of(inputs), None)
        readings[name] = taken_ns, run.is_all_early
    return readings


def _known(nodes: tuple[QueryNode, ...], reading_ns: Mapping[str, int]) -> tuple[QueryNode, ...]:
    """Return the query with the reader's latency as it will be."""

    def known(node: QueryNode) -> QueryNode:
        variants = (replace(each, full_ns=reading_ns[each.name]) for each in node.variants)
        return replace(node, variants=tuple(variants))

    return tuple(known(node) if node.name == PLATE else node for node in nodes)


def _texts(frame: PipelineFrame) -> tuple[str, ...]:
    return tuple(
        f"{node}={'early' if was_early else variant}"
        for node, (variant, was_early) in frame.taken.items()
        if node != "join"
    )
