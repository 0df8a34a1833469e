"""A pipeline against its networks: whether the tensors fit, and what it takes and gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from brisk.pipelines.description import EarlyAnswer, NodeSource, PipelineDescription
from brisk.pipelines.fields import Problems, hint


@dataclass(frozen=True, slots=True)
class TensorType:
    """``element``: ``float32`` and so on, None where unknown. A size is None where it is dynamic
    or unknown, the shape where its rank is. ``is_optional``: an input with a default."""

    element: str | None
    shape: tuple[int | None, ...] | None
    is_optional: bool = False

    def __str__(self) -> str:
        sizes = "…" if self.shape is None else ", ".join(str(s or "?") for s in self.shape)
        return f"{self.element or 'unknown'} [{sizes}]"


@dataclass(frozen=True, slots=True)
class NetworkSignature:
    """Inputs and outputs of a network, or of a whole pipeline, by name, in order."""

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]


def check_networks(
    description: PipelineDescription, networks: Mapping[Path, NetworkSignature]
) -> NetworkSignature:
    """What the pipeline takes and gives; ``networks`` by the paths in ``description``.

    Raises InvalidModelError with every tensor that is not there or does not fit.
    """
    problems = Problems(str(description.path))
    made = {node.name: [networks[path] for _, path in node.networks] for node in description.nodes}
    taken: dict[str, TensorType] = {}
    for node in description.nodes:
        for words, path in node.networks:
            signature = networks[path]
            for tensor in signature.inputs:
                if tensor not in node.inputs and not signature.inputs[tensor].is_optional:
                    problems.note(words, f"nothing is said of its input '{tensor}'")
            for tensor, source in node.inputs.items():
                if tensor not in signature.inputs:
                    text = f"it has no input '{tensor}'{hint(tensor, signature.inputs)}"
                    problems.note(words, text)
                    continue
                wanted = signature.inputs[tensor]
                if source.node is None:
                    _take(taken, source.tensor, wanted, words, problems)
                for given in _types(source, made):
                    if not _fits(given, wanted):
                        text = f"its input '{tensor}' is {wanted}, but {source} is {given}"
                        problems.note(words, text)
        if node.early_answer is not None:
            _check_early_answer(node.name, node.early_answer, networks, problems)
    outputs = _outputs(description, made, problems)
    problems.report()
    return NetworkSignature(taken, outputs)


def _outputs(
    description: PipelineDescription,
    made: Mapping[str, Sequence[NetworkSignature]],
    problems: Problems,
) -> dict[str, TensorType]:
    """Of the pipeline; also notes whatever no variant makes though it is read."""
    for words, source in _reads(description):
        for network in made.get(source.node or "", ()):
            if source.tensor not in network.outputs:
                known = hint(source.tensor, network.outputs)
                problems.note(words, f"not every variant makes {source}{known}")
                break
    outputs = {}
    for name, source in description.outputs.items():
        given = list(_types(source, made))
        if given:
            outputs[name] = given[0]
            for other in given[1:]:
                outputs[name] = _merged(outputs[name], other)
    return outputs


def _reads(description: PipelineDescription) -> Iterator[tuple[str, NodeSource]]:
    for node in description.nodes:
        yield from ((f"node '{node.name}'", source) for source in node.inputs.values())
    yield from (("outputs", source) for source in description.outputs.values())


def _check_early_answer(
    name: str, early: EarlyAnswer, networks: Mapping[Path, NetworkSignature], problems: Problems
) -> None:
    place, outputs = f"node '{name}', early_answer", networks[early.path].outputs
    if early.confidence not in outputs:
        text = f"it has no output '{early.confidence:.60}'{hint(early.confidence, outputs)}"
        problems.note(place, text)
    elif outputs[early.confidence].element not in (None, "float32", "float16", "float64"):
        problems.note(
            place, f"'{early.confidence}' is {outputs[early.confidence]}, no probabilities"
        )


def _take(
    taken: dict[str, TensorType], name: str, wanted: TensorType, words: str, problems: Problems
) -> None:
    before = taken.get(name)
    if before is None:
        taken[name] = TensorType(wanted.element, wanted.shape)
    elif not _fits(before, wanted):
        problems.note(words, f"it takes 'request.{name}' as {wanted}, another one as {before}")
    else:
        shape = _narrowed(before.shape, wanted.shape)
        taken[name] = TensorType(before.element or wanted.element, shape)


def _types(
    source: NodeSource, made: Mapping[str, Sequence[NetworkSignature]]
) -> Iterator[TensorType]:
    for network in made.get(source.node or "", ()):
        if source.tensor in network.outputs:
            yield network.outputs[source.tensor]


def _fits(given: TensorType, wanted: TensorType) -> bool:
    if given.element and wanted.element and given.element != wanted.element:
        return False
    if given.shape is None or wanted.shape is None:
        return True
    return len(given.shape) == len(wanted.shape) and all(
        not (size and other) or size == other
        for size, other in zip(given.shape, wanted.shape, strict=True)
    )


def _narrowed(
    one: tuple[int | None, ...] | None, other: tuple[int | None, ...] | None
) -> tuple[int | None, ...] | None:
    """What fits both; precondition: something does."""
    if one is None or other is None:
        return one or other
    return tuple(a or b for a, b in zip(one, other, strict=True))


def _merged(one: TensorType, other: TensorType) -> TensorType:
    """What both are."""
    element = one.element if one.element == other.element else None
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return TensorType(element, None)
    sizes = tuple(a if a == b else None for a, b in zip(one.shape, other.shape, strict=True))
    return TensorType(element, sizes)
