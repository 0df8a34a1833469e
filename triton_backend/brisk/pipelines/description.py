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
from brisk.pipelines.query import POLICIES, Replanning
from brisk.protocol.entry_files import MODEL_FILE

MAX_BYTES = 1_000_000
MAX_OBJECTIVE_MS = 3_600_000.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

REQUEST = "request"
"""The name that stands for a node's in sources that are the pipeline's own inputs."""


@dataclass(frozen=True, slots=True)
class NodeSource:
    """A tensor that a node computes; ``node`` None: an input of the request."""

    node: str | None
    tensor: str

    def __str__(self) -> str:
        return f"{self.node or REQUEST}.{self.tensor}"


@dataclass(frozen=True, slots=True)
class VariantDescription:
    """One network for a node, whose ``accuracy`` is the share of right answers, 0 to 1."""

    name: str
    path: Path
    accuracy: float


@dataclass(frozen=True, slots=True)
class EarlyAnswer:
    """A network tried before the node's variant, with the node's own inputs and outputs.

    Its answer is taken if every row of its output ``confidence``, class probabilities along the
    last axis, has one of ``at_least``.
    """

    path: Path
    confidence: str
    at_least: float


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A node of a pipeline."""

    name: str
    inputs: Mapping[str, NodeSource]
    """The source of each input tensor of the node's networks."""
    variants: tuple[VariantDescription, ...]
    early_answer: EarlyAnswer | None

    @property
    def after(self) -> tuple[str, ...]:
        """The nodes whose outputs it reads."""
        names = (source.node for source in self.inputs.values())
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def networks(self) -> tuple[tuple[str, Path], ...]:
        """Every network of the node, its early answer first, each with its name in errors."""
        named = [(f"node '{self.name}', variant '{v.name}'", v.path) for v in self.variants]
        if self.early_answer is not None:
            named.insert(0, (f"node '{self.name}', its early answer", self.early_answer.path))
        return tuple(named)


@dataclass(frozen=True, slots=True)
class PipelineDescription:
    """A pipeline."""

    path: Path
    objective_ns: int
    policy: str
    """A name in ``query.POLICIES``."""
    replanning: str
    """A value of ``query.Replanning``."""
    nodes: tuple[NodeDescription, ...]
    """The nodes, in an order in which they can run."""
    outputs: Mapping[str, NodeSource]
    trial_shapes: Mapping[str, tuple[int, ...]]
    """Shapes of inputs of the pipeline for the trial run, with the batch."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the tensors that a request brings, in the order in which they are named."""
        sources = (source for node in self.nodes for source in node.inputs.values())
        return tuple(dict.fromkeys(s.tensor for s in sources if s.node is None))

    @property
    def networks(self) -> tuple[tuple[str, Path], ...]:
        """The networks of all nodes; a file may be there more than once."""
        return tuple(network for node in self.nodes for network in node.networks)


def read_pipeline(path: Path) -> PipelineDescription:
    """Read ``<repository>/<entry>/<version>/pipeline.json``; find the networks, but do not read
    them.

    Raises InvalidModelError with everything that is wrong.
    """
    try:
        with open_file(path, "the pipeline") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise InvalidModelError(f"{path} has more than {MAX_BYTES} bytes")
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidModelError(f"{path} cannot be read: {error}") from error
    return _PipelineReader(path).read(text)


class _PipelineReader:
    """Reads a pipeline; all problems of the file are reported together when it has been read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._problems = Problems(str(path))
        self._nodes: Mapping[str, Any] = {}

    def read(self, text: str) -> PipelineDescription:
        problems = self._problems
        whole = Fields(parse_object(text, problems), "", problems)
        objective_ms = whole.number("objective_ms", MAX_OBJECTIVE_MS)
        policy = whole.text("policy", "proportional", POLICIES)
        replanning = whole.text(
            "replanning", Replanning.STATIC.value, [r.value for r in Replanning]
        )
        self._nodes = whole.objects("nodes")
        nodes = {name: self._node(name, value) for name, value in self._nodes.items()}
        outputs = self._sources(whole.objects("outputs"), "outputs")
        for name, source in outputs.items():
            if source.node is None:
                problems.note("outputs", f"'{name:.60}' must come from a node, not from {source}")
        shapes = self._shapes(whole.take("trial_shapes"))
        whole.finish()
        description = PipelineDescription(
            path=self._path,
            objective_ns=int(objective_ms * 1e6),
            policy=policy,
            replanning=replanning,
            nodes=self._in_order(nodes),
            outputs=outputs,
            trial_shapes=shapes,
        )
        for name in set(shapes) - set(description.inputs):
            suggestion = hint(name, description.inputs)
            problems.note("trial_shapes", f"the pipeline has no input '{name:.60}'{suggestion}")
        problems.report()
        return description

    def _node(self, name: str, value: Any) -> NodeDescription:
        place = f"node '{name:.60}'"
        fields = Fields(value, place, self._problems)
        if not _NAME.fullmatch(name) or name == REQUEST:
            fields.note(f"a name has 1 to 64 letters, digits, _ or -, and is not '{REQUEST}'")
        inputs = self._sources(fields.objects("inputs"), f"{place}, inputs")
        variants = tuple(
            self._variant(
                variant, Fields(content, f"{place}, variant '{variant:.60}'", self._problems)
            )
            for variant, content in fields.objects("variants").items()
        )
        early, answer = fields.take("early_answer"), None
        if early is not None:
            its = Fields(early, f"{place}, early_answer", self._problems)
            answer = EarlyAnswer(
                path=self._locate(its),
                confidence=its.text("confidence"),
                at_least=its.number("at_least", 1),
            )
            its.finish()
        fields.finish()
        return NodeDescription(name, inputs, variants, answer)

    def _variant(self, name: str, fields: Fields) -> VariantDescription:
        if not _NAME.fullmatch(name):
            fields.note("a name has 1 to 64 letters, digits, _ or -")
        variant = VariantDescription(name, self._locate(fields), fields.number("accuracy", 1))
        fields.finish()
        return variant

    def _sources(self, texts: Mapping[str, Any], place: str) -> dict[str, NodeSource]:
        sources = {}
        for tensor, text in texts.items():
            node, dot, name = text.partition(".") if isinstance(text, str) else ("", "", "")
            if not (node and dot and name):
                expected = f"must come from '{REQUEST}.TENSOR' or 'NODE.TENSOR'"
                self._problems.note(place, f"'{tensor:.60}' {expected}, not {shown(text)}")
            elif node != REQUEST and node not in self._nodes:
                suggestion = hint(node, [*self._nodes, REQUEST])
                text = f"'{tensor:.60}' comes from unknown node '{node:.60}'{suggestion}"
                self._problems.note(place, text)
            else:
                sources[tensor] = NodeSource(None if node == REQUEST else node, name)
        return sources

    def _shapes(self, value: Any) -> dict[str, tuple[int, ...]]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._problems.note("trial_shapes", f"expected an object, not {shown(value)}")
            return {}
        shapes = {}
        for name, shape in value.items():
            sizes = shape if isinstance(shape, list) else [None]
            if all(is_number(size) and isinstance(size, int) and size > 0 for size in sizes):
                shapes[name] = tuple(sizes)
            else:
                text = f"'{name:.60}' must be sizes above 0, not {shown(shape)}"
                self._problems.note("trial_shapes", text)
        return shapes

    def _in_order(self, nodes: Mapping[str, NodeDescription]) -> tuple[NodeDescription, ...]:
        """Return the nodes in an order in which they can run; as named, with a problem noted, if
        they wait for each other."""
        sorter = graphlib.TopologicalSorter({name: node.after for name, node in nodes.items()})
        try:
            return tuple(nodes[name] for name in sorter.static_order())
        except graphlib.CycleError as error:
            circle = " -> ".join(error.args[1])
            self._problems.note("nodes", f"they wait for each other: {circle}")
            return tuple(nodes.values())

    def _locate(self, fields: Fields) -> Path:
        """Return the absolute path of the ONNX file that ``file``, or ``entry`` and ``version``,
        name.

        ``file`` is relative to the pipeline's version directory; ``entry`` is a sibling of the
        pipeline's own, whose ``model.onnx`` is used, of its newest version unless one is named. If
        there is no such file in that version's directory, or none can be looked for, a problem is
        noted, and any path returned.
        """
        try:
            return self._find_file(fields)
        except OSError as error:
            fields.note(f"its network cannot be found: {error}")
            return self._path

    def _find_file(self, fields: Fields) -> Path:
        """Return the path as ``_locate`` does. Raises OSError if a directory cannot be read."""
        version_folder = self._path.absolute().parent
        folder: Path | None = version_folder
        file, entry, version = map(fields.take, ("file", "entry", "version"))
        what = "file"
        if isinstance(entry, str) and entry and file is None:
            folder = _entry_folder(fields, version_folder.parent.parent, entry, version)
            file, what = MODEL_FILE, f"entry '{entry:.60}', its file"
        elif not isinstance(file, str) or not file or entry is not None or version is not None:
            fields.note(
                "names its network by 'file' alone, or by 'entry' and, if it is not to be the "
                "newest, 'version'"
            )
            return self._path
        return (folder and _find(fields, folder, file, what)) or self._path


def _find(fields: Fields, folder: Path, name: str, what: str) -> Path | None:
    """Return the path of a file, or of the model in a directory of that name. Note a problem if
    there is none."""
    try:
        path = find_inside(folder, name, what)
        if path is not None and path.is_dir():
            path = find_inside(folder, f"{name}/{MODEL_FILE}", what)
    except InvalidModelError as error:
        fields.note(str(error))
        return None
    if path is None:
        siblings = [other.name for other in folder.glob("*.onnx")]
        fields.note(f"there is no file {folder / name}{hint(Path(name).name, siblings)}")
    return path


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
