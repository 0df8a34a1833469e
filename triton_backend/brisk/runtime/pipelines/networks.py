"""The networks of a pipeline's nodes, and one run of one of them.

They are sessions shared with others; their durations are kept by the shapes of requests.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from brisk.errors import BriskError
from brisk.pipelines import NodeDescription
from brisk.runtime.pipelines.latency import LatencyProfile, Shapes
from brisk.runtime.sessions.device import synchronise
from brisk.runtime.sessions.session import Session
from brisk.segments.values import Value


def shapes_of(inputs: Mapping[str, Value]) -> Shapes:
    """Return the shapes of a request's inputs, by which latencies are kept."""
    return tuple(value.shape for value in inputs.values())


@dataclass(frozen=True, slots=True)
class PipelineNetwork:
    """A node's network with the times of its runs."""

    words: str
    """The network's name in errors."""
    session: Session
    profile: LatencyProfile = field(default_factory=LatencyProfile)
    """The times of whole runs."""
    usual: LatencyProfile = field(default_factory=LatencyProfile)
    """The times of all runs in which it was the node's variant, attempts at an early answer
    included; used if early answers may come."""

    def expect_ns(self, shapes: Shapes) -> int:
        """Return the expected duration of a run. Precondition: the network has been tried."""
        expected_ns = self.profile.expect_ns(shapes)
        assert expected_ns is not None, f"{self.words}: it was never tried"
        return expected_ns

    def named(self, error: BriskError) -> BriskError:
        """Return ``error`` with the network's name before the text."""
        return type(error)(f"{self.words}: {error}")


@dataclass(frozen=True, slots=True)
class NodeNetworks:
    description: NodeDescription
    variants: Mapping[str, PipelineNetwork]
    early: PipelineNetwork | None

    @property
    def networks(self) -> list[PipelineNetwork]:
        return [*self.variants.values(), *([self.early] if self.early else ())]


class NetworkRun:
    """One run of one network. Its steps are timed, without the time that it is parked."""

    def __init__(
        self,
        network: PipelineNetwork,
        inputs: Mapping[str, Value],
        outputs: Sequence[str],
        shapes: Shapes,
        agreement: float | None = None,
    ) -> None:
        """Start a run. ``shapes``: the request's. ``agreement``: see ``Session.start``.

        Raises the errors of the network's frame, with its name before their text.
        """
        self.network = network
        self.inputs = inputs
        self.spent_ns = 0
        self._shapes = shapes
        try:
            self.frame = network.session.start(inputs, outputs, agreement)
        except BriskError as error:
            raise network.named(error) from error
        self.early = self.frame.early
        """The frame, if learned caches may answer; else None."""

    @property
    def is_all_early(self) -> bool:
        early = self.early
        return early is not None and all(one.exit_index is not None for one in early.answers)

    def step(self) -> bool:
        """Run a segment; return True after the last one, when the run's time has been learned.

        The time of a run that a learned cache has shortened is not learned.
        """
        begun_ns = time.monotonic_ns()
        try:
            is_over = self.frame.step()
        except BriskError as error:
            raise self.network.named(error) from error
        if is_over:
            synchronise()
        self.spent_ns += time.monotonic_ns() - begun_ns
        if is_over and (self.early is None or not self.early.has_early_answers):
            self.network.profile.learn(self._shapes, self.spent_ns)
        return is_over
