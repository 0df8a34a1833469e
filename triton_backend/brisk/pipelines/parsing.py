"""``pipeline.json`` to records: all problems of a file are reported together."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brisk.errors import InvalidModelError
from brisk.paths import open_file
from brisk.pipelines.description import (
    REQUEST,
    EarlyAnswer,
    NodeDescription,
    NodeSource,
    PipelineDescription,
    VariantDescription,
)
from brisk.pipelines.fields import Fields, Problems, hint, is_number, parse_object, shown
from brisk.pipelines.places import locate
from brisk.planning.choosing import POLICIES
from brisk.planning.query import Replanning
from brisk.protocol.entry_files import PIPELINE_FILE

MAX_BYTES = 1_000_000
MAX_OBJECTIVE_MS = 3_600_000.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_pipeline(path: Path) -> bool:
    """Whether the file of a version is a pipeline's description rather than a model."""
    return path.suffix == Path(PIPELINE_FILE).suffix


def read_pipeline(path: Path) -> PipelineDescription:
    """Read ``<repository>/<entry>/<version>/pipeline.json``; the networks are found, not read.

    Raises InvalidModelError with everything that is wrong.
    """
    problems = Problems(str(path))
    try:
        with open_file(path, "the pipeline") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise InvalidModelError(f"{path} has more than {MAX_BYTES} bytes")
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidModelError(f"{path} cannot be read: {error}") from error
    whole = Fields(parse_object(text, problems), "", problems)
    objective_ms = whole.number("objective_ms", 0, MAX_OBJECTIVE_MS)
    policy = whole.text("policy", "proportional", POLICIES)
    replanning = whole.text("replanning", "incremental", [r.value for r in Replanning])
    given = whole.objects("nodes")
    nodes = {name: _node(name, value, given, path, problems) for name, value in given.items()}
    outputs = _sources(whole.objects("outputs"), "outputs", given, problems)
    for name, source in outputs.items():
        if source.node is None:
            problems.note("outputs", f"'{name:.60}' must come from a node, not from {source}")
    shapes = _shapes(whole.optional("trial_shapes"), problems)
    whole.finish()
    description = PipelineDescription(
        path,
        int(objective_ms * 1e6),
        policy,
        replanning,
        _in_order(nodes, problems),
        outputs,
        shapes,
    )
    for name in set(shapes) - set(description.inputs):
        known = hint(name, description.inputs)
        problems.note("trial_shapes", f"the pipeline has no input '{name:.60}'{known}")
    problems.report()
    return description


def _node(
    name: str, value: Any, nodes: Mapping[str, Any], path: Path, problems: Problems
) -> NodeDescription:
    place = f"node '{name:.60}'"
    fields = Fields(value, place, problems)
    if not _NAME.fullmatch(name) or name == REQUEST:
        fields.note(f"a name has 1 to 64 letters, digits, _ or -, and is not '{REQUEST}'")
    inputs = _sources(fields.objects("inputs"), f"{place}, inputs", nodes, problems)
    variants = tuple(
        _variant(variant, given, f"{place}, variant '{variant:.60}'", path, problems)
        for variant, given in fields.objects("variants").items()
    )
    early = fields.optional("early_answer")
    answer = None if early is None else _early_answer(early, place, path, problems)
    fields.finish()
    return NodeDescription(name, inputs, variants, answer)


def _variant(
    name: str, value: Any, place: str, path: Path, problems: Problems
) -> VariantDescription:
    fields = Fields(value, place, problems)
    if not _NAME.fullmatch(name):
        fields.note("a name has 1 to 64 letters, digits, _ or -")
    found = locate(fields, path)
    accuracy = fields.number("accuracy", 0, 1)
    fields.finish()
    return VariantDescription(name, found, accuracy)


def _early_answer(value: Any, node: str, path: Path, problems: Problems) -> EarlyAnswer:
    fields = Fields(value, f"{node}, early_answer", problems)
    found = locate(fields, path)
    confidence = fields.text("confidence")
    at_least = fields.number("at_least", 0, 1)
    fields.finish()
    return EarlyAnswer(found, confidence, at_least)


def _sources(
    given: Mapping[str, Any], place: str, nodes: Mapping[str, Any], problems: Problems
) -> dict[str, NodeSource]:
    sources = {}
    for tensor, text in given.items():
        node, dot, name = text.partition(".") if isinstance(text, str) else ("", "", "")
        if not (node and dot and name):
            wanted = f"must come from '{REQUEST}.TENSOR' or 'NODE.TENSOR'"
            problems.note(place, f"'{tensor:.60}' {wanted}, not {shown(text)}")
        elif node != REQUEST and node not in nodes:
            known = hint(node, [*nodes, REQUEST])
            problems.note(place, f"'{tensor:.60}' comes from unknown node '{node:.60}'{known}")
        else:
            sources[tensor] = NodeSource(None if node == REQUEST else node, name)
    return sources


def _shapes(value: Any, problems: Problems) -> dict[str, tuple[int, ...]]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        problems.note("trial_shapes", f"expected an object, not {shown(value)}")
        return {}
    shapes = {}
    for name, shape in value.items():
        sizes = shape if isinstance(shape, list) else [None]
        if all(is_number(size) and isinstance(size, int) and size > 0 for size in sizes):
            shapes[name] = tuple(sizes)
        else:
            problems.note(
                "trial_shapes", f"'{name:.60}' must be sizes above 0, not {shown(shape)}"
            )
    return shapes


def _in_order(
    nodes: Mapping[str, NodeDescription], problems: Problems
) -> tuple[NodeDescription, ...]:
    """In an order in which they can run: of those that can, the one that is named first."""
    sorter = graphlib.TopologicalSorter({name: node.after for name, node in nodes.items()})
    try:
        return tuple(nodes[name] for name in sorter.static_order())
    except graphlib.CycleError as error:
        problems.note("nodes", f"they wait for each other: {' -> '.join(error.args[1])}")
        return tuple(nodes.values())
