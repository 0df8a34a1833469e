"""A pipeline against its networks: whether the tensors fit, and what it takes and gives."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from pathlib import Path

from brisk.pipelines.description import NodeSource, PipelineDescription
from brisk.pipelines.fields import Problems, hint
from brisk.protocol.signature import NetworkSignature, TensorType

_PROBABILITIES = ("float32", "float16", "float64")


def check_networks(
    description: PipelineDescription, networks: Mapping[Path, NetworkSignature]
) -> NetworkSignature:
    """What the pipeline takes and gives; ``networks`` by the paths in ``description``.

    Raises InvalidModelError with every tensor that is not there or does not fit.
    """
    problems = Problems(str(description.path))
    made = {node.name: [networks[path] for _, path in node.networks] for node in description.nodes}
    taken: dict[str, TensorType] = {}

    def given(source: NodeSource) -> list[TensorType]:
        """As each variant makes it."""
        found = [network.outputs.get(source.tensor) for network in made.get(source.node or "", ())]
        return [each for each in found if each is not None]

    def check_made(words: str, source: NodeSource) -> None:
        for network in made.get(source.node or "", ()):
            if source.tensor not in network.outputs:
                known = hint(source.tensor, network.outputs)
                problems.note(words, f"not every variant makes {source}{known}")
                return

    def check_input(words: str, tensor: str, source: NodeSource, wanted: TensorType) -> None:
        if source.node is None:
            before = taken.get(source.tensor, TensorType(None, None))
            both = _both(before, wanted)
            if both is None:
                text = f"it takes '{source}' as {wanted}, another one as {before}"
                problems.note(words, text)
            else:
                taken[source.tensor] = both
        for each in given(source):
            if _both(each, wanted) is None:
                text = f"its input '{tensor}' is {wanted}, but {source} is {each}"
                problems.note(words, text)

    for node in description.nodes:
        for words, path in node.networks:
            inputs = networks[path].inputs
            for tensor in inputs:
                if tensor not in node.inputs and not inputs[tensor].is_optional:
                    problems.note(words, f"nothing is said of its input '{tensor}'")
            for tensor, source in node.inputs.items():
                if tensor in inputs:
                    check_input(words, tensor, source, inputs[tensor])
                else:
                    problems.note(words, f"it has no input '{tensor}'{hint(tensor, inputs)}")
        for source in node.inputs.values():
            check_made(f"node '{node.name}'", source)
        if (early := node.early_answer) is not None:
            place, outputs = f"node '{node.name}', early_answer", networks[early.path].outputs
            name = f"'{early.confidence:.60}'"
            if early.confidence not in outputs:
                problems.note(place, f"it has no output {name}{hint(early.confidence, outputs)}")
            elif outputs[early.confidence].element not in (None, *_PROBABILITIES):
                problems.note(place, f"{name} is {outputs[early.confidence]}, no probabilities")
    for source in description.outputs.values():
        check_made("outputs", source)
    problems.report()
    results = {
        name: reduce(_either, given(source)) for name, source in description.outputs.items()
    }
    return NetworkSignature(taken, results)


def _both(one: TensorType, other: TensorType) -> TensorType | None:
    """What is of both types; None where nothing is."""
    if one.element and other.element and one.element != other.element:
        return None
    element, shape = one.element or other.element, one.shape or other.shape
    if one.shape is not None and other.shape is not None:
        if len(one.shape) != len(other.shape):
            return None
        pairs = list(zip(one.shape, other.shape, strict=True))
        if any(size and another and size != another for size, another in pairs):
            return None
        shape = tuple(size or another for size, another in pairs)
    return TensorType(element, shape)


def _either(one: TensorType, other: TensorType) -> TensorType:
    """What a value of one of the types is in any case."""
    element = one.element if one.element == other.element else None
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return TensorType(element, None)
    sizes = tuple(a if a == b else None for a, b in zip(one.shape, other.shape, strict=True))
    return TensorType(element, sizes)
