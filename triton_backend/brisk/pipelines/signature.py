"""A pipeline against its networks: whether the tensors fit, and what it takes and gives."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from pathlib import Path

from brisk.pipelines.description import (
    EarlyAnswer,
    NodeDescription,
    NodeSource,
    PipelineDescription,
)
from brisk.pipelines.fields import Problems, hint
from brisk.protocol.signature import NetworkSignature, TensorType

_PROBABILITIES = ("float32", "float16", "float64")


def check_networks(
    description: PipelineDescription, networks: Mapping[Path, NetworkSignature]
) -> NetworkSignature:
    """What the pipeline takes and gives; ``networks`` by the paths in ``description``.

    Raises InvalidModelError with every tensor that is not there or does not fit.
    """
    check = _NetworkCheck(description, networks)
    for node in description.nodes:
        check.node(node)
    for source in description.outputs.values():
        check.made("outputs", source)
    check.problems.report()
    results = {
        name: reduce(_either, check.types_of(source))
        for name, source in description.outputs.items()
    }
    return NetworkSignature(check.taken, results)


class _NetworkCheck:
    """``problems``: all that does not fit. ``taken``: what the pipeline takes, by name, as far as
    its nodes have been checked."""

    def __init__(
        self, description: PipelineDescription, networks: Mapping[Path, NetworkSignature]
    ) -> None:
        self.problems = Problems(str(description.path))
        self.taken: dict[str, TensorType] = {}
        self._networks = networks
        self._variants = {
            node.name: [networks[path] for _, path in node.networks] for node in description.nodes
        }

    def types_of(self, source: NodeSource) -> list[TensorType]:
        """The types in which the variants of a node make the tensor; none of a request's."""
        variants = self._variants.get(source.node or "", ())
        kinds = [network.outputs.get(source.tensor) for network in variants]
        return [kind for kind in kinds if kind is not None]

    def made(self, words: str, source: NodeSource) -> None:
        """Note where a variant does not make the tensor."""
        for network in self._variants.get(source.node or "", ()):
            if source.tensor not in network.outputs:
                known = hint(source.tensor, network.outputs)
                self.problems.note(words, f"not every variant makes {source}{known}")
                return

    def node(self, node: NodeDescription) -> None:
        for words, path in node.networks:
            inputs = self._networks[path].inputs
            for tensor in inputs:
                if tensor not in node.inputs and not inputs[tensor].is_optional:
                    self.problems.note(words, f"nothing is said of its input '{tensor}'")
            for tensor, source in node.inputs.items():
                if tensor in inputs:
                    self._input(words, tensor, source, inputs[tensor])
                else:
                    text = f"it has no input '{tensor}'{hint(tensor, inputs)}"
                    self.problems.note(words, text)
        for source in node.inputs.values():
            self.made(f"node '{node.name}'", source)
        if node.early_answer is not None:
            self._early_answer(f"node '{node.name}', early_answer", node.early_answer)

    def _input(self, words: str, tensor: str, source: NodeSource, wanted: TensorType) -> None:
        """Note where the network takes another type than the request or a variant gives."""
        if source.node is None:
            before = self.taken.get(source.tensor, TensorType(None, None))
            both = _both(before, wanted)
            if both is None:
                text = f"it takes '{source}' as {wanted}, another one as {before}"
                self.problems.note(words, text)
            else:
                self.taken[source.tensor] = both
        for kind in self.types_of(source):
            if _both(kind, wanted) is None:
                text = f"its input '{tensor}' is {wanted}, but {source} is {kind}"
                self.problems.note(words, text)

    def _early_answer(self, words: str, early: EarlyAnswer) -> None:
        outputs, name = self._networks[early.path].outputs, f"'{early.confidence:.60}'"
        if early.confidence not in outputs:
            text = f"it has no output {name}{hint(early.confidence, outputs)}"
            self.problems.note(words, text)
        elif outputs[early.confidence].element not in (None, *_PROBABILITIES):
            text = f"{name} is {outputs[early.confidence]}, no probabilities"
            self.problems.note(words, text)


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
