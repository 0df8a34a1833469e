"""A model on a device: its session, and what was captured of it, by the shapes of its inputs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from brisk.gpu.capture import Capture, NotCapturedError
from brisk.gpu.device import Device, Ticket
from brisk.gpu.driver import Event, Stream

MOST_CAPTURED = 16
"""Shapes of inputs that a model's runs are kept for."""

PATIENCE_S = 0.0005
"""For the lane, before others get a turn."""

Key: TypeAlias = "tuple[tuple[str, str, tuple[int, ...]], ...]"
"""Name, type and shape of each input."""

RunPlain: TypeAlias = "Callable[[Mapping[str, Any], Sequence[str]], Mapping[str, Any]]"


class Network:
    """One run at a time: captured or not, all of them use the session's memory.

    Used by the worker's main thread, but for what the lane is given.
    """

    def __init__(
        self,
        device: Device,
        stream: Stream,
        session: Any,
        new_options: Callable[[], Any],
        run_plain: RunPlain,
        tell: Callable[[str], None],
        *,
        may_capture: bool = True,
    ) -> None:
        """``session``: ONNX Runtime's, on ``stream``. ``new_options``: makes a run's options.
        ``run_plain``: runs the model as ever. ``tell``: is told why something is not captured.
        """
        self.device = device
        self._stream, self._session, self._new_options = stream, session, new_options
        self._run_plain, self._tell = run_plain, tell
        self.may_capture = may_capture
        self.captured: OrderedDict[Key, Capture | None] = OrderedDict()
        """None: runs with these shapes cannot be captured."""
        self.turn = 0
        """Number of the run that has the memory."""
        self._tail: Event = device.context.event()
        """Behind what was issued last."""
        self._busy: Ticket | None = None
        self._is_closed = False

    def is_free(self) -> bool:
        """Whether the lane has left it; waits a moment for that."""
        if self._busy is not None and self._busy.wait(PATIENCE_S):
            self._busy = None
        return self._busy is None

    def take(self) -> int:
        """The number of a run that begins now; the one before, if it is not over, begins again
        when it has its next turn. Precondition: ``is_free``.
        """
        self._tail.synchronise()
        self.turn += 1
        return self.turn

    def issued(self, stream: Stream) -> None:
        self._tail.record(stream)

    def capture(self, key: Key, inputs: Mapping[str, np.ndarray]) -> Ticket:
        """Have the lane capture a run; its result is in ``captured`` then."""
        self.take()
        self._busy = self.device.perform(lambda: self._capture(key, inputs))
        return self._busy

    def run_plain(self, inputs: Mapping[str, Any], requested: Sequence[str]) -> Ticket:
        """Have the lane run it, to the end; the requested outputs by name."""
        self.take()
        self._busy = self.device.perform(lambda: self._run_plain(inputs, requested))
        return self._busy

    def close(self) -> None:
        """Have the lane give everything back; nobody may use it any more."""
        if not self._is_closed:
            self._is_closed = True
            self.take()
            self.device.perform(self._close)

    def _capture(self, key: Key, inputs: Mapping[str, np.ndarray]) -> None:
        while len(self.captured) >= MOST_CAPTURED:
            _, oldest = self.captured.popitem(last=False)
            if oldest is not None:
                oldest.close()
        context = self.device.context
        try:
            made = Capture(context, self._session, self._new_options(), self._stream, inputs)
        except NotCapturedError as error:
            self._tell(f"runs on {key} are not captured: {error}")
            self.captured[key] = None
            return
        self.captured[key] = made

    def _close(self) -> None:
        for made in self.captured.values():
            if made is not None:
                made.close()
        self.captured.clear()
        self._session = self._run_plain = None  # type: ignore[assignment]
        self._tail.close()
        self.device.give_back(self._stream)


class CapturedRun:
    """One run of a network; belongs to the main thread. A step issues a launch, or waits a moment
    for the lane; ``is_finished``: all is issued, and done where it was not captured.
    """

    can_answer_early = False

    __slots__ = (
        "_capture",
        "_inputs",
        "_is_plain",
        "_network",
        "_parts",
        "_position",
        "_requested",
        "_results",
        "_ticket",
        "_turn",
        "key",
    )

    def __init__(
        self, network: Network, inputs: Mapping[str, np.ndarray], requested: Sequence[str]
    ) -> None:
        """``inputs``: all of the session's, by name."""
        self._network, self._inputs, self._requested = network, inputs, requested
        self.key: Key = tuple(
            (name, value.dtype.str, value.shape) for name, value in inputs.items()
        )
        self._capture: Capture | None = None
        self._parts: Sequence[Any] = ()
        self._position = 0
        self._turn = -1
        self._ticket: Ticket | None = None
        self._is_plain = False
        self._results: dict[str, Any] | None = None

    @property
    def position(self) -> int:
        """Launches that were issued."""
        return self._position

    @property
    def upcoming(self) -> str:
        """The next launch in words, for traces; empty where there is none."""
        if self.is_finished:
            return ""
        return f"chunk {self._position} of {len(self._parts)}" if self._parts else "capture"

    @property
    def is_finished(self) -> bool:
        if self._results is not None:
            return True
        count = len(self._parts)
        return self._turn == self._network.turn and self._position == count > 0

    def step(self) -> bool:
        """Issue the next launch, if it can be; True where it was the last.

        Raises CudaError, and what the lane's work raised.
        """
        network = self._network
        if self.is_finished:
            return True
        if self._turn != network.turn and not self._prepare():
            return self._results is not None
        stream, capture, position = network.device.stream, self._capture, self._position
        assert capture is not None
        if position == 0:
            self._parts = [capture.whole] if network.device.is_urgent else capture.parts
            capture.write(self._inputs, stream)
        self._parts[position].launch(stream)
        self._position = position + 1
        if self._position == len(self._parts):
            capture.read(self._requested, stream)
        network.issued(stream)
        return self._position == len(self._parts)

    def _prepare(self) -> bool:
        """Whether the network is this run's, and there is something to launch."""
        network, ticket = self._network, self._ticket
        if not network.is_free():
            return False
        if ticket is not None:
            self._ticket = None
            value = ticket.result()
            if self._is_plain:
                self._results = dict(value)
                return False
        if network.may_capture and self.key not in network.captured:
            self._ticket = network.capture(self.key, self._inputs)
            return False
        self._capture = network.captured.get(self.key)
        if self._capture is None:
            self._is_plain = True
            self._ticket = network.run_plain(self._inputs, self._requested)
            return False
        network.captured.move_to_end(self.key)
        self._turn = network.take()
        self._position, self._parts = 0, ()
        return True

    def results(self) -> dict[str, Any]:
        """The requested outputs by name. Precondition: all is issued, and the stream is done."""
        if self._results is None:
            capture = self._capture
            assert capture is not None
            self._results = {name: capture.outputs[name].array.copy() for name in self._requested}
        return self._results
