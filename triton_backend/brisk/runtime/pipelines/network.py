"""A pipeline's networks: sessions shared with others, what they took, and single runs of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from brisk.errors import BriskError, InternalError
from brisk.pipelines import NodeDescription
from brisk.planning import LatencyProfile
from brisk.runtime.models.session import Frame, Session
from brisk.runtime.worker.device import synchronise
from brisk.segments.values import Value

if TYPE_CHECKING:
    from brisk.exits.serving.frame import ExitingFrame

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """The kind of a request, by which latencies are remembered: its inputs' shapes."""

    shapes: Shapes
    size: int

    @classmethod
    def of(cls, inputs: Mapping[str, Value]) -> Signature:
        shapes = shapes_of(inputs)
        return cls(shapes, sum(math.prod(shape) for shape in shapes))


def shapes_of(values: Mapping[str, Value]) -> Shapes:
    return tuple(tuple(getattr(value, "shape", ())) for value in values.values())


@dataclass(frozen=True, slots=True)
class PipelineNetwork:
    """A node's network with what it took; ``words`` name it in errors.

    ``profile``: of its whole runs. ``usual``: where early answers may come, of all runs in which
    it was the node's variant, attempts at an early answer included.
    """

    words: str
    session: Session
    profile: LatencyProfile = field(default_factory=LatencyProfile)
    usual: LatencyProfile = field(default_factory=LatencyProfile)

    def expect_ns(self, signature: Signature) -> int:
        """Precondition: it has been tried."""
        expected_ns = self.profile.expect_ns(signature.shapes, signature.size)
        if expected_ns is None:
            raise InternalError(f"{self.words}: it was never tried")
        return expected_ns

    def expect_usually_ns(self, signature: Signature) -> int | None:
        """None where it has answered nothing yet, and where nothing answers early."""
        return self.usual.expect_ns(signature.shapes, signature.size)

    def pass_by(self, signature: Signature) -> None:
        """Another variant of its node has run on such an input."""
        self.profile.pass_by(signature.shapes)
        self.usual.pass_by(signature.shapes)


@dataclass(frozen=True, slots=True)
class NodeNetworks:
    """A node with its networks."""

    description: NodeDescription
    variants: Mapping[str, PipelineNetwork]
    early: PipelineNetwork | None


class NetworkRun:
    """One run of one network, timed: its steps only, not the time it is parked."""

    def __init__(
        self,
        network: PipelineNetwork,
        inputs: Mapping[str, Value],
        outputs: Sequence[str],
        signature: Signature,
        clock_ns: Callable[[], int],
        agreement: float | None = None,
    ) -> None:
        """``agreement``: as ``Session.start`` takes it.

        Raises the errors of the network's frame, with its name before their text.
        """
        self._network = network
        self.inputs = inputs
        self._signature = signature
        self._clock_ns = clock_ns
        self._shapes = shapes_of(inputs)
        self.spent_ns = 0
        try:
            self._frame = network.session.start(inputs, outputs, agreement)
        except BriskError as error:
            raise _named(network, error) from error

    @property
    def session(self) -> Session:
        return self._network.session

    @property
    def has_early_answers(self) -> bool:
        """Whether a learned cache has answered some of its rows."""
        return self.early is not None and self.early.has_early_answers

    @property
    def is_all_early(self) -> bool:
        """Whether learned caches have answered all rows."""
        early = self.early
        return early is not None and all(one.exit_index is not None for one in early.answers)

    @property
    def frame(self) -> Frame:
        return self._frame

    @property
    def early(self) -> ExitingFrame | None:
        """Its frame, where learned caches may answer."""
        return cast("ExitingFrame", self._frame) if self._frame.can_answer_early else None

    def step(self) -> bool:
        """Run a layer; True after the last one, when its time has been learned.

        A run that a learned cache has shortened says nothing of a whole one.
        """
        begun_ns = self._clock_ns()
        try:
            is_over = self._frame.step()
        except BriskError as error:
            raise _named(self._network, error) from error
        if is_over:
            synchronise()
        self.spent_ns += self._clock_ns() - begun_ns
        if is_over and not self.has_early_answers:
            signature = self._signature
            self._network.profile.learn(signature.shapes, signature.size, self.spent_ns)
        return is_over


def _named(network: PipelineNetwork, error: BriskError) -> BriskError:
    return type(error)(f"{network.words}: {error}")
