"""Runs of small layers in an artefact: written ready to run, and loaded as layers of a start.

A start draws and packs nothing: the table of steps and the weights as the executor reads them are
mapped. The members' own weights are there, too, behind all that a start reads, for what the run
does not fit.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from brisk.artefacts.container import Container, ContainerWriter
from brisk.compiled.bounds import check_steps
from brisk.compiled.library import Library, library
from brisk.compiled.table import Kind, StepEntry
from brisk.errors import ArtefactError
from brisk.execution.kept import tensor_within
from brisk.execution.plan import LayerPlan
from brisk.execution.runs import DrawnRun, as_steps
from brisk.graph.program import Dimension, Program
from brisk.native.run import Outside
from brisk.native.sketch import Sketch, Steps
from brisk.solutions.values import DTYPE_NAMES, TORCH_DTYPES

_LINE = 16
"""Floats: each step's weights, and its bias, begin at a multiple of it (``prepared.h``)."""
_ORDERS = (torch.contiguous_format, torch.channels_last)


@dataclass(frozen=True, slots=True)
class PackedRun:
    """A run whose steps have their weights in ``steps.packed``.

    ``offsets``: in floats, where the weights of each of ``run.large_layers`` lie there.
    """

    run: DrawnRun
    steps: Steps
    tensors: Mapping[int, Mapping[str, torch.Tensor]]
    offsets: Mapping[int, int]

    @classmethod
    def of(cls, run: DrawnRun, planned: Sequence[LayerPlan], executor: Library) -> PackedRun:
        """``planned``: all layers of the program. Precondition: the run is a sketch."""
        assert isinstance(run.drawn, Sketch)
        tensors = {
            place: planned[place].solution.transform(planned[place].problem)
            for place in run.large_layers
        }
        sketch = run.drawn.bound(lambda place: as_steps(tensors[place]))
        steps = sketch.compiled()
        offsets, offset = {}, 0
        for step, entry in zip(sketch.steps, steps.entries, strict=True):
            if step.kind is Kind.LAYER:
                offsets[step.member] = offset
            offset += executor.packed_floats((StepEntry * 1)(entry))
        packed = executor.packed(steps.entries)
        return cls(run, Steps(steps.entries, steps.floats, packed), tensors, offsets)

    @property
    def packed(self) -> np.ndarray:
        """float32."""
        assert self.steps.packed is not None
        return self.steps.packed

    @property
    def ready(self) -> DrawnRun:
        """The run as a start has it."""
        return dataclasses.replace(self.run, drawn=self.steps)

    def write(self, writer: ContainerWriter) -> dict[str, Any]:
        """A record for ``read_run``; its blobs go to ``writer``."""
        run, entries = self.run, self.steps.entries
        table = type(entries).from_buffer_copy(entries)
        for entry in table:
            entry.weights = entry.bias = None
        return {
            "first": run.first,
            "last": run.last,
            "images": run.images,
            "floats": self.steps.floats,
            "inputs": _write_outsides(run.inputs),
            "outputs": _write_outsides(run.outputs),
            "blobs": [
                writer.add(np.frombuffer(bytes(table), np.uint8), is_indexed=True),
                writer.add(self.packed.view(np.uint8)),
            ],
        }

    def member_tensors(self, place: int, record: Mapping[str, Any]) -> dict[str, Any] | None:
        """Records of a member's transformed weights within the blob of ``record``, which ``write``
        gave; None where its weights are not kept so.
        """
        if place not in self.offsets:
            return None
        offset, found = self.offsets[place], {}
        for name in ("panels", "bias"):
            tensor = self.tensors[place][name]
            found[name] = tensor_within(tensor, record["blobs"][1], 4 * offset)
            offset += -(-tensor.numel() // _LINE) * _LINE
        return found


def packed_runs(
    runs: Sequence[DrawnRun], planned: Sequence[LayerPlan], disk_bytes: int
) -> list[PackedRun]:
    """The first of ``runs`` that fit into ``disk_bytes``; none without the executor.

    ``planned``: all layers of the program.
    """
    executor, found = library(), []
    if executor is None:
        return []
    for run in runs:
        made = PackedRun.of(run, planned, executor)
        disk_bytes -= made.packed.nbytes
        if disk_bytes < 0:
            break
        found.append(made)
    return found


def read_run(record: Mapping[str, Any], container: Container, program: Program) -> DrawnRun:
    """The run, its weights mapped.

    Raises ArtefactError where record or blobs are damaged, ValueError and its kin where what they
    say does not fit ``program``, or would have the executor leave its memory.
    """
    executor = library()
    if executor is None:
        raise ArtefactError(f"{container.path}: there is no compiled library for its runs")
    first, last, images, floats = (
        _integer(record[name]) for name in ("first", "last", "images", "floats")
    )
    if not 0 <= first <= last < len(program.layers):
        raise ValueError(f"layers {first} to {last} of {len(program.layers)}")
    inputs, outputs = (_read_outsides(record[name], program) for name in ("inputs", "outputs"))
    if any(form.dtype is not torch.float32 for form in inputs.values()):
        raise ValueError("an input that is not float32")
    table, packed = record["blobs"]
    content = container.copied(table)
    count, rest = divmod(len(content), ctypes.sizeof(StepEntry))
    entries = (StepEntry * count).from_buffer_copy(content)
    if rest or any(entry.weights or entry.bias for entry in entries):
        raise ValueError(f"{len(content)} bytes are no table of steps")
    read, written = ([form.floats for form in each.values()] for each in (inputs, outputs))
    check_steps(entries, floats, images, read, written, executor.block)
    container.verify(packed)
    weights = container.view(packed).view(np.float32)
    if executor.packed_floats(entries) != weights.size:
        raise ArtefactError(
            f"{container.path}: the steps and weights of a run do not fit together"
        )
    return DrawnRun(first, last, inputs, outputs, images, Steps(entries, floats, weights))


def _integer(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r:.40} is not a whole number")
    return value


def _write_outsides(values: Mapping[str, Outside]) -> list[list[Any]]:
    return [
        [name, list(form.sizes), DTYPE_NAMES[form.dtype], _ORDERS.index(form.order)]
        for name, form in values.items()
    ]


def _read_outsides(records: Sequence[Sequence[Any]], program: Program) -> dict[str, Outside]:
    """Raises ValueError where a value of the program is of another type."""
    found = {}
    for name, sizes, dtype, order in records:
        kind = program.types[name]
        shape = [_integer(size) for size in sizes]
        if kind.dtype != dtype or kind.shape is None or not _fits(shape, kind.shape[1:]):
            raise ValueError(f"'{name:.80}' is no {dtype} of {shape}")
        if _integer(order) not in ((0, 1) if len(shape) == 3 else (0,)):
            raise ValueError(f"'{name:.80}' lies in order {order}")
        found[name] = Outside(tuple(shape), TORCH_DTYPES[dtype], _ORDERS[order])
    if len(found) != len(records):
        raise ValueError("a value twice")
    return found


def _fits(sizes: Sequence[int], declared: Sequence[Dimension]) -> bool:
    return len(sizes) == len(declared) and all(
        size >= 1 and (not isinstance(wanted, int) or size == wanted)
        for size, wanted in zip(sizes, declared, strict=True)
    )
