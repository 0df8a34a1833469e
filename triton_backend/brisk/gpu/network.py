"""A model on a device: its session, and the captured runs, by the shapes of its inputs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from brisk.errors import BriskError
from brisk.gpu.capture import Capture, NotCapturedError
from brisk.gpu.device import Device
from brisk.gpu.driver import Event, Stream
from brisk.gpu.memory_limit import naming_the_limit

MOST_CAPTURED = 16
"""The most shapes of inputs whose captured runs are kept, if they share a session."""

MOST_INSTANCES = 8
"""The most shapes of inputs whose captured runs are kept, if each has a session of its own."""

MOST_EVICTED = 16
"""The evictions after which no more are captured: shapes hardly come again."""

MOST_SEEN = 256

PATIENCE_S = 0.0005
"""The time to wait for the device thread before others get a turn."""

Key: TypeAlias = "tuple[tuple[str, str, tuple[int, ...]], ...]"
"""Name, type and shape of each input."""

RunPlain: TypeAlias = "Callable[[Mapping[str, Any], Sequence[str]], Mapping[str, Any]]"


class Instance(NamedTuple):
    """ONNX Runtime's session with a stream that only it uses; ``run`` runs it without a
    capture."""

    session: Any
    stream: Stream
    run: RunPlain


class CapturedNetwork:
    """The captured runs of a model. One run at a time: captured or not, runs use their session's
    memory.

    If the session plans convolutions for the shapes of a run, the next run of another shape drops
    the plan, and the kernels that cuDNN has compiled for it. A captured run would then launch
    kernels that no longer exist. So each shape has its own instance there, and so have runs that
    are not captured. A shape is captured when it comes again.

    Used by the worker's main thread, except for work that is given to the device thread.
    """

    def __init__(
        self,
        device: Device,
        first: Instance,
        open_another: Callable[[], Instance] | None,
        new_options: Callable[[], Any],
        tell: Callable[[str], None],
        *,
        may_capture: bool = True,
    ) -> None:
        """``open_another``: makes an instance like ``first``; None: one serves all shapes.
        ``new_options``: makes a run's options. ``tell``: called with the reason why something is
        not captured."""
        self.device = device
        self._first, self._open_another = first, open_another
        self._new_options, self._tell = new_options, tell
        self.may_capture = may_capture
        self.captured: OrderedDict[Key, Capture | None] = OrderedDict()
        """The captures by shapes; None: runs with these shapes cannot be captured."""
        self._instances: dict[Key, Instance] = {}
        """The instances whose runs were captured, if there are several."""
        self._plain: Instance | None = None if open_another else first
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self._evicted = 0
        self.turn = 0
        """The number of the run that uses the network's memory."""
        self._tail: Event = device.context.event()
        """The event behind the work that was issued last."""
        self._busy: Future[Any] | None = None
        self._is_closed = False

    @property
    def opens_others(self) -> bool:
        """Whether more instances of the model may be opened."""
        return self._open_another is not None

    def is_free(self) -> bool:
        """Whether the device thread no longer uses it; waits up to ``PATIENCE_S`` for that."""
        if self._busy is not None and wait([self._busy], PATIENCE_S).done:
            self._busy = None
        return self._busy is None

    def take(self) -> int:
        """Begin a run. Return its number; the previous run, if it is not over, starts over at its
        next turn.

        Precondition: ``is_free``.
        """
        self._tail.synchronise()
        self.turn += 1
        return self.turn

    def issued(self, stream: Stream) -> None:
        self._tail.record(stream)

    def wants(self, key: Key) -> bool:
        """Whether to capture a run with these shapes now. If each shape has its own instance, only
        from the second run on."""
        if not self.may_capture or key in self.captured:
            return False
        if self._open_another is None:
            return True
        if key in self._seen:
            return self._evicted < MOST_EVICTED
        self._seen[key] = None
        if len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)
        return False

    def capture(self, key: Key, inputs: Mapping[str, np.ndarray]) -> Future[Any]:
        """Have the device thread capture a run; its result is in ``captured`` afterwards."""
        self.take()
        self._busy = self.device.perform(lambda: self._capture(key, inputs))
        return self._busy

    def run_plain(self, inputs: Mapping[str, Any], requested: Sequence[str]) -> Future[Any]:
        """Have the device thread run the session to the end; the result is the requested outputs
        by name."""
        self.take()
        self._busy = self.device.perform(lambda: self._run_plain(inputs, requested))
        return self._busy

    def close(self) -> None:
        """Have the device thread free everything. Precondition: the network is no longer used."""
        if not self._is_closed:
            self._is_closed = True
            self.take()
            self.device.perform(self._close)

    # --- the device thread -------------------------------------------------------------------

    def _capture(self, key: Key, inputs: Mapping[str, np.ndarray]) -> None:
        most = MOST_CAPTURED if self._open_another is None else MOST_INSTANCES
        while len(self.captured) >= most:
            self._drop(next(iter(self.captured)))
            self._evicted += 1
        instance = self._first
        used = [self._plain, *self._instances.values()]
        if self._open_another is not None and instance in used:
            instance = self._opened_another()
        if not self.may_capture:
            return
        context, stream = self.device.context, instance.stream
        try:
            capture = Capture(context, instance.session, self._new_options(), stream, inputs)
        except NotCapturedError as error:
            shapes = ", ".join(f"{name} {kind[1:]} {list(shape)}" for name, kind, shape in key)
            self._tell(f"runs on {shapes} are not captured: {error}")
            self.captured[key] = None
            self._give_back(instance)
            return
        self.captured[key] = capture
        self._instances[key] = instance

    def _run_plain(self, inputs: Mapping[str, Any], requested: Sequence[str]) -> Mapping[str, Any]:
        if self._plain is None:
            is_taken = self._first in self._instances.values()
            self._plain = self._opened_another() if is_taken else self._first
        with naming_the_limit():
            return self._plain.run(inputs, requested)

    def _opened_another(self) -> Instance:
        """Return another instance.

        If none can be made (the file has changed, memory is short), the first one serves runs that
        are not captured, and no run is captured any more.
        """
        assert self._open_another is not None
        try:
            return self._open_another()
        except BriskError as error:
            self._tell(f"runs are not captured any more: {error}")
            self.may_capture = False
            for key in list(self.captured):
                self._drop(key)
            self._plain = self._first
            return self._first

    def _drop(self, key: Key) -> None:
        capture = self.captured.pop(key)
        if capture is not None:
            capture.close()
        if (instance := self._instances.pop(key, None)) is not None:
            self._give_back(instance)

    def _give_back(self, instance: Instance) -> None:
        if instance is not self._first and instance is not self._plain:
            self.device.give_back(instance.stream)

    def _close(self) -> None:
        for key in list(self.captured):
            self._drop(key)
        streams = {each.stream for each in (self._first, self._plain) if each is not None}
        for stream in streams:
            self.device.give_back(stream)
        self._first = self._plain = self._open_another = None  # type: ignore[assignment]
        self._tail.close()


class CapturedRun:
    """One run of a network; belongs to the main thread.

    A step issues a launch, or waits a moment for the device thread. ``is_finished``: all launches
    are issued; a run that is not captured is also done.
    """

    early = None
    """None: no learned caches answer rows of this run."""

    def __init__(
        self, network: CapturedNetwork, inputs: Mapping[str, np.ndarray], requested: Sequence[str]
    ) -> None:
        """``inputs``: all inputs of the session, by name."""
        self._network, self._inputs, self._requested = network, inputs, requested
        self.key: Key = tuple(
            (name, value.dtype.str, value.shape) for name, value in inputs.items()
        )
        self._capture: Capture | None = None
        self._chunks: Sequence[Any] = ()
        self._position = 0
        self._turn = -1
        self._ticket: Future[Any] | None = None
        self._is_plain = False
        self._results: dict[str, Any] | None = None

    @property
    def position(self) -> int:
        """The number of launches that were issued."""
        return self._position

    @property
    def upcoming(self) -> str:
        """The name of the next launch, for traces; empty: there is none."""
        if self.is_finished:
            return ""
        return f"chunk {self._position} of {len(self._chunks)}" if self._chunks else "capture"

    @property
    def is_finished(self) -> bool:
        if self._results is not None:
            return True
        count = len(self._chunks)
        return self._turn == self._network.turn and self._position == count > 0

    def step(self) -> bool:
        """Issue the next launch, if possible. Return whether it was the last.

        Raises CudaError, and what the device thread's work raised.
        """
        network = self._network
        if self.is_finished:
            return True
        if self._turn != network.turn and not self._prepare():
            return self._results is not None
        stream, capture, position = network.device.stream, self._capture, self._position
        assert capture is not None
        if position == 0:
            self._chunks = [capture.whole] if network.device.is_urgent else capture.chunks
            capture.write(self._inputs, stream)
        self._chunks[position].launch(stream)
        self._position = position + 1
        if self._position == len(self._chunks):
            capture.read(self._requested, stream)
        network.issued(stream)
        return self._position == len(self._chunks)

    def _prepare(self) -> bool:
        """Prepare the run: take the network, or have the device thread capture or run it.

        Return whether the network is this run's, and there is something to launch.
        """
        network, ticket = self._network, self._ticket
        if not network.is_free():
            return False
        if ticket is not None:
            self._ticket = None
            value = ticket.result()
            if self._is_plain:
                self._results = dict(value)
                return False
        if network.wants(self.key):
            self._ticket = network.capture(self.key, self._inputs)
            return False
        self._capture = network.captured.get(self.key)
        if self._capture is None:
            self._is_plain = True
            self._ticket = network.run_plain(self._inputs, self._requested)
            return False
        network.captured.move_to_end(self.key)
        self._turn = network.take()
        self._position, self._chunks = 0, ()
        return True

    def results(self) -> dict[str, Any]:
        """Return the requested outputs by name. Precondition: all is issued, and the stream is
        done."""
        if self._results is None:
            capture = self._capture
            assert capture is not None
            self._results = {name: capture.outputs[name].array.copy() for name in self._requested}
        return self._results
