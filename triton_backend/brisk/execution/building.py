"""Making artefacts: from a program and a cold plan to a published file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from brisk.artefacts import store
from brisk.artefacts.arrays import ArrayRecord, array_bytes, write_array
from brisk.artefacts.container import ContainerWriter
from brisk.artefacts.identity import ModelIdentity
from brisk.artefacts.paged import write_sums
from brisk.artefacts.programs import blobs_of, write_program
from brisk.execution.artefact import SCHEMA, UNMEASURED, LayerCosts, fingerprint_of
from brisk.execution.kept import can_keep, write_tensor
from brisk.execution.kept_runs import PackedRun
from brisk.execution.plan import Plan
from brisk.execution.runs import DrawnRun
from brisk.execution.tables import table_of
from brisk.graph.program import Layer
from brisk.segments.starting import dealt, lane_count
from brisk.solutions.base import Operand, Problem, Solution


@dataclass(frozen=True, slots=True)
class ColdLayer:
    """What the artefact holds of a layer.

    ``cached``: keep the transformed weights. Where the ``warm`` solution is another, the raw ones
    are kept too. ``lane``: loads it; None: the executor.
    """

    problem: Problem
    solution: Solution
    cached: bool
    warm: Solution
    lane: int | None
    costs: LayerCosts = UNMEASURED

    @property
    def needs_raw(self) -> bool:
        return self.warm is not self.solution


def default_layers(
    cold: Plan, warm: Plan, lanes: int, runs: Sequence[DrawnRun] = ()
) -> list[ColdLayer]:
    """The plan without measurements: cached wherever that is possible.

    Members of ``runs`` need their raw weights, for what a run does not fit, unless they are
    computed by their own kernels there.
    """
    joined = {place for run in runs for place in run.places} - {
        place for run in runs for place in run.large_layers
    }
    queues = dealt(len(cold.layers), lanes)
    lane_of = {index: lane for lane, queue in enumerate(queues) for index in queue}
    return [
        ColdLayer(
            planned.problem,
            planned.solution,
            cached=index not in joined
            and bool(planned.solution.transformed_operands(planned.problem)),
            warm=target.solution,
            lane=lane_of[index],
        )
        for index, (planned, target) in enumerate(zip(cold.layers, warm.layers, strict=True))
    ]


def publish_artefact(
    model: Path,
    plan: Plan,
    layers: Sequence[ColdLayer],
    threads: int,
    identity: ModelIdentity,
    directory: Path,
    breathe: Callable[[], None],
    runs: Sequence[PackedRun] = (),
) -> Path:
    """Write the artefact of ``plan.program`` into ``directory``. Raises OSError, ArtefactError."""
    target = directory / store.artefact_name(model, fingerprint_of(plan.device, threads))
    write = draw_up(plan, layers, threads, identity, breathe, runs)
    store.publish(target, write)
    return target


def draw_up(
    plan: Plan,
    layers: Sequence[ColdLayer],
    threads: int,
    identity: ModelIdentity,
    breathe: Callable[[], None] = lambda: None,
    runs: Sequence[PackedRun] = (),
) -> Callable[[BinaryIO], None]:
    """What writes the artefact of ``plan.program`` to a file. Raises ArtefactError."""
    writer = ContainerWriter()
    content = {
        "schema": SCHEMA,
        "fingerprint": fingerprint_of(plan.device, threads),
        "identity": dict(identity.digests),
        "lanes": lane_count(threads),
        **_content(plan, layers, runs, writer, breathe),
    }
    return lambda file: writer.write(file, content, breathe)


def _content(
    plan: Plan,
    layers: Sequence[ColdLayer],
    runs: Sequence[PackedRun],
    writer: ContainerWriter,
    breathe: Callable[[], None],
) -> dict[str, Any]:
    weights = plan.program.weights
    run_of = {place: packed for packed in runs for place in packed.run.places}
    run_records: list[dict[str, Any]] = []
    records: dict[str, ArrayRecord] = {}
    kept: list[dict[str, Any]] = []
    names: list[tuple[str, ...]] = []
    for place, layer in enumerate(layers):
        breathe()
        packed = run_of.get(place)
        if packed is None:
            tensors = _write_tensors(layer, writer) if layer.cached else None
        else:
            if place == packed.run.first:
                run_records.append(packed.write(writer))
            tensors = packed.member_tensors(place, run_records[-1])
        covered = layer.solution.transformed_operands(layer.problem) if tensors else frozenset()
        needed = _constants(layer.problem.layer, covered, weights)
        for name in needed:
            if name not in records and packed is None:
                records[name] = write_array(weights[name], writer)
        names.append(needed)
        table = None if packed is not None else table_of(layer.problem)
        kept.append(
            {
                "solution": layer.solution.name,
                "warm": layer.warm.name,
                "tensors": tensors,
                "table": None if table is None else _write_table(table, records, writer),
                "lane": layer.lane,
                "costs": list(dataclasses.astuple(layer.costs)),
            }
        )
    own = {variable.name for variable in (*plan.program.inputs, *plan.program.outputs)}
    raw = {
        name
        for place, layer in enumerate(layers)
        if layer.needs_raw or (place in run_of and kept[place]["tensors"] is None)
        for name in layer.problem.layer.operands
    }
    raw.update(name for place in run_of for name in names[place])
    for name, array in weights.items():
        if name in records:
            continue
        if name in raw or name in own or array.dtype.kind in "OUS":
            records[name] = write_array(array, writer)
        else:
            records[name] = [array.dtype.name, list(array.shape), None]
    program = write_program(plan.program, writer, records)
    starts = {record["first"]: record["blobs"] for record in run_records}
    for place, record in enumerate(program["layers"]):
        held = [records[name][2] for name in names[place]] if place not in run_of else []
        blobs = [blob for blob in held if isinstance(blob, int)]
        kept[place]["blobs"] = starts.get(place, []) + blobs + blobs_of(record)
        if kept[place]["table"] is not None:
            kept[place]["blobs"].remove(kept[place]["table"][0])
    return {"program": program, "layers": kept, "runs": run_records}


def _constants(
    layer: Layer, covered: frozenset[int], weights: Mapping[str, Any]
) -> tuple[str, ...]:
    """The constants that a layer's solution reads, given the transformed weights."""
    main = [name for place, name in enumerate(layer.main.inputs) if place not in covered]
    others = layer.operands[len(layer.main.inputs) :]
    return tuple(name for name in dict.fromkeys((*main, *others)) if name in weights)


def _write_table(
    table: Operand, records: Mapping[str, ArrayRecord], writer: ContainerWriter
) -> list[int]:
    """The table's blob, and that of its page sums."""
    assert table.constant is not None
    return [records[table.name][2], write_sums(array_bytes(table.constant), writer)]


def _write_tensors(layer: ColdLayer, writer: ContainerWriter) -> dict[str, Any] | None:
    """Records of the transformed weights; None where one cannot be kept."""
    tensors = layer.solution.transform(layer.problem)
    if not all(can_keep(tensor) for tensor in tensors.values()):
        return None
    return {name: write_tensor(tensor, writer) for name, tensor in tensors.items()}
