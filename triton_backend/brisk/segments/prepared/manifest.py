"""The plan of a prepared form in the manifest of its file, written and read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from brisk.artefacts.container import Container, ContainerDraft
from brisk.errors import ArtefactError
from brisk.graph.files.element_types import dtype_of_name
from brisk.graph.program import ContainerKind, ValueType, Variable
from brisk.segments.source import SegmentPlan, SegmentSpec


def write_plan(plan: SegmentPlan, draft: ContainerDraft) -> dict[str, Any]:
    """Values of JSON; elements of arrays become blobs of ``draft``."""
    return {
        "name": plan.name,
        "inputs": [_write_variable(each) for each in plan.inputs],
        "fixed": [_write_variable(each) for each in plan.fixed],
        "outputs": [_write_variable(each) for each in plan.outputs],
        "segments": [
            [list(each.inputs), list(each.outputs), list(each.dead), each.words]
            for each in plan.segments
        ],
        "defaults": {name: _write_array(array, draft) for name, array in plan.defaults.items()},
    }


def read_plan(record: Mapping[str, Any], container: Container) -> SegmentPlan:
    """Raises KeyError, TypeError, ValueError or ArtefactError where ``write_plan`` made no such
    record.
    """
    plan = SegmentPlan(
        name=str(record["name"]),
        inputs=tuple(map(_read_variable, record["inputs"])),
        outputs=tuple(map(_read_variable, record["outputs"])),
        segments=tuple(
            SegmentSpec(index, tuple(inputs), tuple(outputs), tuple(dead), str(words))
            for index, (inputs, outputs, dead, words) in enumerate(record["segments"])
        ),
        defaults={
            name: _read_array(array, container) for name, array in record["defaults"].items()
        },
        fixed=tuple(map(_read_variable, record["fixed"])),
    )
    _check_values(plan, container)
    return plan


def _check_values(plan: SegmentPlan, container: Container) -> None:
    """That every value is made before it is read, and not gone."""
    live = {variable.name for variable in plan.inputs}
    for segment in plan.segments:
        if missing := set(segment.inputs) - live:
            raise ArtefactError(
                f"{container.path}: segment {segment.index} lacks {sorted(missing)}"
            )
        live = (live | set(segment.outputs)) - set(segment.dead)
    if missing := {variable.name for variable in plan.outputs} - live:
        raise ArtefactError(f"{container.path}: nothing makes {sorted(missing)}")


def _write_variable(variable: Variable) -> list[Any]:
    kind = variable.type
    shape = None if kind.shape is None else list(kind.shape)
    return [variable.name, [kind.dtype, shape, kind.container.value], variable.optional]


def _read_variable(record: Any) -> Variable:
    name, (dtype, shape, container), optional = record
    kind = ValueType(dtype, None if shape is None else tuple(shape), ContainerKind(container))
    return Variable(name, kind, bool(optional))


def _write_array(array: np.ndarray, draft: ContainerDraft) -> list[Any]:
    """``[dtype, shape, blob number]``, of strings ``["string", shape, [text, ...]]``."""
    shape = list(array.shape)
    if array.dtype.kind in "OUS":
        return ["string", shape, [str(item) for item in array.reshape(-1)]]
    elements = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return [array.dtype.name, shape, draft.add(elements)]


def _read_array(record: Any, container: Container) -> np.ndarray:
    """The array, a view of the container, whose elements are compared with their checksum."""
    name, shape, content = record
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ArtefactError(f"{container.path}: an array of shape {shape}")
    if name == "string":
        return np.array(content, object).reshape(shape)
    container.verify(content)
    return container.view(content).view(dtype_of_name(name)).reshape(shape)
