"""Checks a pipeline against its networks: whether the tensors fit, and what inputs and outputs the
pipeline itself has."""

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
    """Return the pipeline's inputs and outputs. ``networks``: by the paths in ``description``.

    Raises InvalidModelError with every tensor that is missing or does not fit.
    """
    checks = _NetworkCheck(description, networks)
    for node in description.nodes:
        checks.check_node(node)
    for source in description.outputs.values():
        checks.check_made("outputs", source)
    checks.problems.report()
    results = {
        name: reduce(_either, checks.types_of(source))
        for name, source in description.outputs.items()
    }
    return NetworkSignature(checks.inputs, results)


class _NetworkCheck:
    """The check of the nodes' tensors, and the pipeline's inputs as far as they are checked."""

    def __init__(
        self, description: PipelineDescription, networks: Mapping[Path, NetworkSignature]
    ) -> None:
        self.problems = Problems(str(description.path))
        self.inputs: dict[str, TensorType] = {}
        self._networks = networks
        self._of_nodes = {
            node.name: [networks[path] for _, path in node.networks] for node in description.nodes
        }

    def types_of(self, source: NodeSource) -> list[TensorType]:
        """Return the type of a tensor of each variant that makes it."""
        networks = self._of_nodes.get(source.node or "", ())
        outputs = [network.outputs.get(source.tensor) for network in networks]
        return [each for each in outputs if each is not None]

    def check_made(self, label: str, source: NodeSource) -> None:
        """Note a problem if some variant does not make a tensor."""
        for network in self._of_nodes.get(source.node or "", ()):
            if source.tensor not in network.outputs:
                suggestion = hint(source.tensor, network.outputs)
                self.problems.note(label, f"not every variant makes {source}{suggestion}")
                return

    def check_node(self, node: NodeDescription) -> None:
        """Note the problems of a node."""
        for label, path in node.networks:
            inputs = self._networks[path].inputs
            for tensor in inputs:
                if tensor not in node.inputs and not inputs[tensor].is_optional:
                    self.problems.note(label, f"nothing is said of its input '{tensor}'")
            for tensor, source in node.inputs.items():
                if tensor in inputs:
                    self._input(label, tensor, source, inputs[tensor])
                else:
                    self.problems.note(label, f"it has no input '{tensor}'{hint(tensor, inputs)}")
        for source in node.inputs.values():
            self.check_made(f"node '{node.name}'", source)
        if node.early_answer is not None:
            self._early_answer(f"node '{node.name}', early_answer", node.early_answer)

    def _input(self, label: str, tensor: str, source: NodeSource, expected: TensorType) -> None:
        if source.node is None:
            before = self.inputs.get(source.tensor, TensorType(None, None))
            both = _both(before, expected)
            if both is None:
                text = f"it takes '{source}' as {expected}, another one as {before}"
                self.problems.note(label, text)
            else:
                self.inputs[source.tensor] = both
        for each in self.types_of(source):
            if _both(each, expected) is None:
                text = f"its input '{tensor}' is {expected}, but {source} is {each}"
                self.problems.note(label, text)

    def _early_answer(self, label: str, early: EarlyAnswer) -> None:
        outputs, name = self._networks[early.path].outputs, f"'{early.confidence:.60}'"
        if early.confidence not in outputs:
            self.problems.note(label, f"it has no output {name}{hint(early.confidence, outputs)}")
        elif outputs[early.confidence].element not in (None, *_PROBABILITIES):
            self.problems.note(label, f"{name} is {outputs[early.confidence]}, no probabilities")


def _both(one: TensorType, other: TensorType) -> TensorType | None:
    """Return the type of values that have both types; None if there are no such values."""
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
    """Return the type of a value of one type or the other, with unknowns where they differ."""
    element = one.element if one.element == other.element else None
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return TensorType(element, None)
    sizes = tuple(a if a == b else None for a, b in zip(one.shape, other.shape, strict=True))
    return TensorType(element, sizes)
