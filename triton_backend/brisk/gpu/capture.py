"""A session's run for inputs of some shapes, captured on memory that stays in place.

ONNX Runtime computes on Brisk's stream, with inputs and answers at fixed addresses; the third run
is captured. From then on graphs are launched without ONNX Runtime: as a whole, or in chunks of at
most ``CHUNK_US``, between which more urgent work runs (REEF, section 4).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from brisk.errors import InternalError
from brisk.gpu.driver import Context, CudaError, DeviceMemory, Event, Stream
from brisk.gpu.graphs import Executable, Graph, capturing, chunks

CHUNK_US = 50.0

MOST_TIMED = 64
"""The most pieces in which a graph is timed."""

PASSES = 3

_DEVICE = "cuda"

_ASYNCHRONOUS = "disable_synchronize_execution_providers"
"""The option of a run that makes it return when all is issued."""

_NAMES = {"float": "float32", "double": "float64"}
"""numpy's names of types, where ONNX Runtime has others."""


class NotCapturedError(Exception):
    """The run cannot be captured; the message says why. It can run without a capture."""


class Staged:
    """A tensor's memory on the device, and the pinned memory that it is copied from or to."""

    def __init__(self, context: Context, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        """Allocate both memories. Raises CudaError if there is not enough."""
        count = int(np.prod(shape, dtype=np.int64))
        self.size = count * dtype.itemsize
        self.memory: DeviceMemory = context.allocate(self.size)
        try:
            self._pinned = context.pinned(self.size)
        except CudaError:
            self.memory.close()
            raise
        held = (ctypes.c_uint8 * self.size).from_address(self._pinned.handle)
        self.array = np.frombuffer(memoryview(held), dtype).reshape(tuple(shape))
        """The process's memory; valid until ``close``."""

    def close(self) -> None:
        self.memory.close()
        self._pinned.close()

    def to_device(self, stream: Stream) -> None:
        stream.to_device(self.memory, self._pinned.handle, self.size)

    def to_host(self, stream: Stream) -> None:
        stream.to_host(self._pinned.handle, self.memory, self.size)


class Capture:
    """A captured run, as one launch (``whole``) and in ``chunks``. It takes ``run_us``.

    It has its own memory, so only one run at a time can use it.
    """

    def __init__(
        self,
        context: Context,
        session: Any,
        run_options: Any,
        stream: Stream,
        inputs: Mapping[str, np.ndarray],
    ) -> None:
        """Capture a run. ``session``: ONNX Runtime's, on ``stream``. ``inputs``: used for trials.

        Raises NotCapturedError, and CudaError if the device is lost.
        """
        self._context, self._stream = context, stream
        self._binding = session.io_binding()
        self._resources = contextlib.ExitStack()
        self.inputs: dict[str, Staged] = {}
        self.outputs: dict[str, Staged] = {}
        self.chunks: list[Executable] = []
        run_options.add_run_config_entry(_ASYNCHRONOUS, "1")

        def run() -> None:
            session.run_with_iobinding(self._binding, run_options)

        self._run = run
        try:
            with _refusals():
                self._bind(session, inputs)
                expected = self._answers(self._run)
                with capturing(context.driver, stream) as graphs:
                    self._run()
                with contextlib.closing(graphs[0]) as graph:
                    self.nodes = graph.kinds()
                    self._make(graph)
                self._verify(inputs, expected)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the capture's memory and graphs. Precondition: none of its launches still runs."""
        self._resources.close()

    def _keep(self, resource: Any) -> Any:
        self._resources.callback(resource.close)
        return resource

    # --- memory ------------------------------------------------------------------------------

    def _bind(self, session: Any, inputs: Mapping[str, np.ndarray]) -> None:
        for name, value in inputs.items():
            if value.dtype.isbuiltin != 1 or value.dtype.kind not in "biufc" or not value.size:
                raise NotCapturedError(f"input '{name}' is {value.dtype} {list(value.shape)}")
            staged = self._keep(Staged(self._context, value.shape, value.dtype))
            self.inputs[name] = staged
            self._bind_to(self._binding.bind_input, name, staged)
        self.write(inputs, self._stream)
        for output in session.get_outputs():
            self._binding.bind_output(output.name, _DEVICE, self._context.device)
        self._run()
        self._stream.synchronise()
        values = self._binding.get_outputs()
        for output, value in zip(session.get_outputs(), values, strict=True):
            dtype = _dtype_of(output.type)
            if dtype is None or not all(value.shape()):
                raise NotCapturedError(f"output '{output.name}' is {output.type} {value.shape()}")
            staged = self._keep(Staged(self._context, value.shape(), dtype))
            self.outputs[output.name] = staged
        self._binding.clear_binding_outputs()
        for name, staged in self.outputs.items():
            self._bind_to(self._binding.bind_output, name, staged)

    def _bind_to(self, bind: Callable[..., None], name: str, staged: Staged) -> None:
        array, ordinal = staged.array, self._context.device
        bind(name, _DEVICE, ordinal, array.dtype, array.shape, staged.memory.handle)

    def write(self, inputs: Mapping[str, np.ndarray], stream: Stream) -> None:
        """Copy the inputs to the device. Precondition: the previous copies are complete."""
        for name, staged in self.inputs.items():
            np.copyto(staged.array, inputs[name])
            staged.to_device(stream)

    def read(self, names: Sequence[str], stream: Stream) -> None:
        """Copy answers to the process's memory; they are there when the stream is done."""
        for name in names:
            self.outputs[name].to_host(stream)

    def _answers(self, run: Callable[[], object]) -> dict[str, bytes]:
        """Return the bytes of the outputs after ``run``; outputs that it does not write hold
        0xFF."""
        for staged in self.outputs.values():
            staged.array.view(np.uint8).fill(0xFF)
            staged.to_device(self._stream)
        run()
        self.read(list(self.outputs), self._stream)
        self._stream.synchronise()
        return {name: staged.array.tobytes() for name, staged in self.outputs.items()}

    # --- graphs ------------------------------------------------------------------------------

    def _make(self, graph: Graph) -> None:
        sources = self._own_sources(graph)
        if not graph.can_be_cut and (sources or "host" in self.nodes):
            raise NotCapturedError(f"its graph holds {self.nodes}, which reads memory of the host")
        self.whole: Executable = self._keep(graph.executable(sources=sources))
        self.whole.upload(self._stream)
        self._stream.synchronise()
        self.run_us = min(self._timed(self.whole) for _ in range(PASSES))
        self.chunks = [self.whole]
        if graph.can_be_cut and self.run_us > CHUNK_US:
            self.chunks = [
                self._keep(graph.executable(*each, sources)) for each in self._cut(graph, sources)
            ]
        for chunk in self.chunks:
            chunk.upload(self._stream)

    def _own_sources(self, graph: Graph) -> dict[int, int]:
        """Copy to the device the process's memory that the graph's copies read, since ONNX Runtime
        reuses it.

        Return addresses on the device by nodes' numbers.
        """
        addresses = {}
        for index, copy in graph.host_copies().items():
            if (copy.height, copy.depth) > (1, 1) or copy.source.x_bytes or copy.source.y:
                raise NotCapturedError("a copy from the host's memory has several dimensions")
            memory = self._keep(self._context.allocate(copy.width_bytes))
            address = copy.source.host or copy.source.device
            self._stream.to_device(memory, address, copy.width_bytes)
            addresses[index] = memory.handle
        self._stream.synchronise()
        return addresses

    def _timed(self, executable: Executable) -> float:
        """Return the time of ``executable`` on the device, in µs."""
        with (
            contextlib.closing(self._context.event()) as first,
            contextlib.closing(self._context.event()) as last,
        ):
            first.record(self._stream)
            executable.launch(self._stream)
            last.record(self._stream)
            self._stream.synchronise()
            return last.ms_since(first) * 1e3

    def _cut(self, graph: Graph, sources: Mapping[int, int]) -> list[tuple[int, int]]:
        """Return the spans of the chunks' nodes.

        Pieces are timed in the order in which they run, since a kernel may wait for the output of
        another one. The time of a launch is subtracted, so that all add up to the whole.
        """
        count = len(graph.nodes)
        step = max(1, -(-count // MOST_TIMED))
        spans = [(first, min(first + step, count)) for first in range(0, count, step)]
        with contextlib.ExitStack() as resources:
            pieces = [graph.executable(*span, sources) for span in spans]
            events = [self._context.event() for _ in range(len(spans) + 1)]
            for piece in pieces:
                resources.callback(piece.close)
            for event in events:
                resources.callback(event.close)
            for piece in pieces:
                piece.upload(self._stream)
            passes = []
            for _ in range(PASSES):
                for event, piece in zip(events, pieces, strict=False):
                    event.record(self._stream)
                    piece.launch(self._stream)
                events[-1].record(self._stream)
                self._stream.synchronise()
                passes.append(list(_gaps_us(events)))
        times = [statistics.median(column) for column in zip(*passes, strict=True)]
        launch_us = max((sum(times) - self.run_us) / len(times), 0.0)
        runs = chunks([max(each - launch_us, 0.1) for each in times], CHUNK_US)
        return [(spans[first][0], spans[end - 1][1]) for first, end in runs]

    # --- whether it is right -----------------------------------------------------------------

    def _verify(self, inputs: Mapping[str, np.ndarray], expected: Mapping[str, bytes]) -> None:
        """Check that the capture answers like the session, whole and in chunks, for these inputs
        and for others.

        A session whose own answers change is not compared. Raises NotCapturedError.
        """

        def launch_chunks() -> None:
            for chunk in self.chunks:
                chunk.launch(self._stream)

        for values, reference in ((inputs, expected), (_others(inputs), None)):
            self.write(values, self._stream)
            reference = reference or self._answers(self._run)
            if self._answers(self._run) != reference:
                return
            for run in (lambda: self.whole.launch(self._stream), launch_chunks):
                if self._answers(run) != reference:
                    raise NotCapturedError("captured, it answers otherwise than its session")


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turn errors of ONNX Runtime or the driver about a run that cannot be captured into
    NotCapturedError; the loss of a device stays a CudaError."""
    try:
        yield
    except CudaError as error:
        if error.is_sticky:
            raise
        raise NotCapturedError(str(error)) from error
    except (NotCapturedError, InternalError):
        raise
    except Exception as error:  # ONNX Runtime's have no common class
        raise NotCapturedError((str(error).strip() or "?").splitlines()[0][:300]) from error


def _gaps_us(events: Sequence[Event]) -> Iterator[float]:
    return (behind.ms_since(before) * 1e3 for before, behind in itertools.pairwise(events))


def _others(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return other inputs of the same shapes; integers stay, since they may be indices or
    lengths."""
    return {
        name: value if value.dtype.kind in "biu" else (value[::-1] if value.ndim else value) * 0.5
        for name, value in inputs.items()
    }


def _dtype_of(name: str) -> np.dtype[Any] | None:
    """Return numpy's type for a name of ONNX Runtime's, such as tensor(float); None if numpy has
    none."""
    inner = name.removeprefix("tensor(").removesuffix(")")
    try:
        dtype = np.dtype(_NAMES.get(inner, inner))
    except TypeError:
        return None
    return dtype if dtype.kind in "biufc" else None
