"""``pipeline.json`` as records; all problems of a file are reported together."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brisk.errors import InvalidModelError
from brisk.paths import find_inside, open_file
from brisk.pipelines.fields import Fields, Problems, hint, is_number, parse_object, shown
from brisk.planning.query import POLICIES, Replanning
from brisk.protocol.entry_files import MODEL_FILE, PIPELINE_FILE

MAX_BYTES = 1_000_000
MAX_OBJECTIVE_MS = 3_600_000.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

REQUEST = "request"
"""Stands where a node's name does, for the inputs of the pipeline itself."""


@dataclass(frozen=True, slots=True)
class NodeSource:
    """A tensor that a node makes; ``node`` None: one that the request brings."""

    node: str | None
    tensor: str

    def __str__(self) -> str:
        return f"{self.node or REQUEST}.{self.tensor}"


@dataclass(frozen=True, slots=True)
class VariantDescription:
    """One network for a node. ``accuracy``: share of right answers, 0 to 1."""

    name: str
    path: Path
    accuracy: float


@dataclass(frozen=True, slots=True)
class EarlyAnswer:
    """A network tried before the node's variant, with the node's own inputs and outputs.

    Its answer is taken where every row of its output ``confidence``, class probabilities along
    the last axis, has one of ``at_least``.
    """

    path: Path
    confidence: str
    at_least: float


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """``inputs``: where each input tensor of the node's networks comes from."""

    name: str
    inputs: Mapping[str, NodeSource]
    variants: tuple[VariantDescription, ...]
    early_answer: EarlyAnswer | None

    @property
    def after(self) -> tuple[str, ...]:
        """The nodes whose outputs it reads."""
        names = (source.node for source in self.inputs.values())
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def networks(self) -> tuple[tuple[str, Path], ...]:
        """Every network of the node with the words that errors name it by."""
        named = [(f"node '{self.name}', variant '{v.name}'", v.path) for v in self.variants]
        if self.early_answer is not None:
            named.insert(0, (f"node '{self.name}', its early answer", self.early_answer.path))
        return tuple(named)


@dataclass(frozen=True, slots=True)
class PipelineDescription:
    """``nodes`` are in an order in which they can run.

    ``policy`` and ``replanning`` are names that ``brisk.planning`` knows. ``trial_shapes``: of
    inputs of the pipeline for the trial run, whole shapes with the batch.
    """

    path: Path
    objective_ns: int
    policy: str
    replanning: str
    nodes: tuple[NodeDescription, ...]
    outputs: Mapping[str, NodeSource]
    trial_shapes: Mapping[str, tuple[int, ...]]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors that a request brings, in the order in which they are named."""
        sources = (source for node in self.nodes for source in node.inputs.values())
        return tuple(dict.fromkeys(s.tensor for s in sources if s.node is None))

    @property
    def networks(self) -> tuple[tuple[str, Path], ...]:
        """Of all nodes; a file may be there more than once."""
        return tuple(network for node in self.nodes for network in node.networks)


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
    found = _locate(fields, path)
    accuracy = fields.number("accuracy", 0, 1)
    fields.finish()
    return VariantDescription(name, found, accuracy)


def _early_answer(value: Any, node: str, path: Path, problems: Problems) -> EarlyAnswer:
    fields = Fields(value, f"{node}, early_answer", problems)
    found = _locate(fields, path)
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


# Where the networks lie: in the pipeline's own version folder or in another entry's.


def _locate(fields: Fields, pipeline: Path) -> Path:
    """The ONNX file that ``file``, or ``entry`` and ``version``, name; its absolute path.

    ``file`` is relative to the pipeline's version directory; ``entry`` is a sibling of the
    pipeline's own, whose ``model.onnx`` is used, of its newest version where none is said. Notes
    a problem, and gives any path, where there is no such file in that version's directory.
    """
    version_directory = pipeline.absolute().parent
    file, entry = fields.optional("file"), fields.optional("entry")
    version = fields.optional("version")
    found: Path | None = None
    if isinstance(file, str) and file and entry is None and version is None:
        found = _file(fields, version_directory, file, "file")
    elif isinstance(entry, str) and entry and file is None:
        folder = _entry_folder(fields, version_directory.parent.parent, entry, version)
        if folder is not None:
            found = _file(fields, folder, MODEL_FILE, f"entry '{entry:.60}', its file")
    else:
        fields.note(
            "names its network by 'file' alone, or by 'entry' and, if it is not to be the "
            "newest, 'version'"
        )
    return found or pipeline


def _file(fields: Fields, folder: Path, name: str, what: str) -> Path | None:
    """A file, or the model in a directory of that name. Notes a problem where it is none."""
    try:
        found = find_inside(folder, name, what)
        if found is not None and found.is_dir():
            found = find_inside(folder, f"{name}/{MODEL_FILE}", what)
    except InvalidModelError as error:
        fields.note(str(error))
        return None
    if found is None:
        siblings = [other.name for other in folder.glob("*.onnx")]
        fields.note(f"there is no file {folder / name}{hint(Path(name).name, siblings)}")
    return found


def _entry_folder(fields: Fields, repository: Path, name: str, version: object) -> Path | None:
    if "/" in name or name in (".", ".."):
        fields.note(f"entry {shown(name)} is no name of an entry")
        return None
    directory = repository / name
    if not directory.is_dir():
        siblings = [path.name for path in repository.iterdir() if path.is_dir()]
        fields.note(f"there is no entry '{name:.60}' in {repository}{hint(name, siblings)}")
        return None
    if version is None:
        versions = [int(path.name) for path in directory.iterdir() if path.name.isdecimal()]
        version = max(versions, default=1)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        fields.note(f"version must be a whole number above 0, not {shown(version)}")
        return None
    return directory / str(version)
