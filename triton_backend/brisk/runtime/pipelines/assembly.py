"""Assembles a pipeline from its networks' sessions, and tries it.

The trial run measures the duration of each network before any request.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from brisk.errors import BriskError
from brisk.graph.files.element_types import dtype_of_name
from brisk.graph.program import Variable
from brisk.pipelines import (
    NetworkSignature,
    NodeSource,
    PipelineDescription,
    TensorType,
    check_networks,
)
from brisk.runtime.pipelines.latency import Shapes
from brisk.runtime.pipelines.networks import NetworkRun, NodeNetworks, PipelineNetwork, shapes_of
from brisk.runtime.pipelines.session import PipelineSession
from brisk.runtime.sessions.session import Session
from brisk.segments.values import Value

RUNS = 4
"""The trial runs of each network; the first one, which warms caches, does not count."""

WHOLE_MODEL = 1.0
"""The agreement asked of networks, so that learned caches answer nothing."""

LONG_RUN_NS = 300_000_000
"""The duration above which a network is run once only."""

Trial: TypeAlias = "Generator[None, bool | None, None]"
"""A trial run: see ``try_pipeline``."""


def assemble(
    description: PipelineDescription,
    sessions: Mapping[Path, Session],
    labels: tuple[str, str],
    started_ns: int,
) -> PipelineSession:
    """Return the pipeline of loaded networks, not tried yet.

    ``labels``: name and version for counters. Raises InvalidModelError if the networks do not fit
    together.
    """
    signatures = {path: signature_of(session) for path, session in sessions.items()}
    signature = check_networks(description, signatures)
    nodes = {}
    for node in description.nodes:
        networks = [PipelineNetwork(words, sessions[path]) for words, path in node.networks]
        early = None if node.early_answer is None else networks.pop(0)
        names = (variant.name for variant in node.variants)
        nodes[node.name] = NodeNetworks(node, dict(zip(names, networks, strict=True)), early)
    return PipelineSession(description, signature, nodes, time.monotonic_ns() - started_ns, labels)


def signature_of(session: Session) -> NetworkSignature:
    def kinds(variables: Sequence[Variable]) -> dict[str, TensorType]:
        types = {}
        for variable in variables:
            shape = variable.type.shape
            if shape is not None:
                shape = tuple(size if isinstance(size, int) else None for size in shape)
            types[variable.name] = TensorType(variable.type.dtype, shape, variable.optional)
        return types

    return NetworkSignature(kinds(session.inputs), kinds(session.outputs))


def try_pipeline(session: PipelineSession) -> Trial:
    """Run every network of every node; yields after each segment.

    It may be sent whether others went on beside that segment; then the processor time that its
    thread took is learned, as the segment may have had to share the processors.

    Inputs are zeros of the entry's ``trial_shapes``, else of the networks' own shapes with 1 for
    each dynamic size. A node reads the outputs of the most accurate variants of earlier nodes.
    Raises the errors of the networks, with the shapes that were tried.
    """
    shapes = session.description.trial_shapes
    inputs = {
        name: _zeros(kind, shapes.get(name)) for name, kind in session.signature.inputs.items()
    }
    values = {NodeSource(None, name): value for name, value in inputs.items()}
    for node in session.nodes.values():
        try:
            yield from _try_node(node, values, shapes_of(inputs))
        except BriskError as error:
            tried = ", ".join(f"'{name}' {list(value.shape)}" for name, value in inputs.items())
            raise type(error)(
                f"{error}; that was the trial run, with zeros as {tried}; trial_shapes in the "
                "entry's file can say others"
            ) from error


def _try_node(node: NodeNetworks, values: dict[NodeSource, Value], shapes: Shapes) -> Trial:
    inputs = {tensor: values[s] for tensor, s in node.description.inputs.items()}
    best = max(node.description.variants, key=lambda variant: variant.accuracy).name
    for network in node.networks:
        outputs = [variable.name for variable in network.session.outputs]
        for number in range(RUNS):
            was_loading = network.session.is_loading
            unlearned = PipelineNetwork(network.words, network.session)
            run = NetworkRun(unlearned, inputs, outputs, shapes, WHOLE_MODEL)
            taken_ns = yield from _timed(run)
            is_long = taken_ns > LONG_RUN_NS
            if number == 0 and (was_loading or not is_long):
                continue
            network.profile.learn(shapes, taken_ns)
            if is_long:
                break
        if network is node.variants[best]:
            for tensor, value in run.frame.results().items():
                values[NodeSource(node.description.name, tensor)] = value


def _timed(run: NetworkRun) -> Generator[None, bool | None, int]:
    """Compute a run; yield after each step, and return the time of all."""
    taken_ns, is_over = 0, False
    while not is_over:
        before_ns, computed_ns = run.spent_ns, time.thread_time_ns()
        is_over = run.step()
        computed_ns = time.thread_time_ns() - computed_ns
        step_ns = run.spent_ns - before_ns
        was_aside = yield
        taken_ns += computed_ns if was_aside else step_ns
    return taken_ns


def _zeros(kind: TensorType, shape: tuple[int, ...] | None) -> Value:
    sizes = shape or tuple(size or 1 for size in kind.shape or ())
    if kind.element == "string":
        return np.full(sizes, "", object)
    return np.zeros(sizes, dtype_of_name(kind.element or "float32"))
