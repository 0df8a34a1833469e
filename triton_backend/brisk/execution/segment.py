"""Segments: a small program as one step, its kernels' calls of torch replayed without the kernels.

Of a network of a few small layers most of the time goes between the calls of torch. A segment
is made for one set of input shapes, at their third run, and used for that alone; it is refused
where a run is not the same calls each time (see ``recording``), or where it is not short: a
segment is one step, and other jobs wait for its end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from brisk.execution.recording import Recorder, RefusedError
from brisk.graph.program import Container, Layer, Program
from brisk.solutions.base import Value

if TYPE_CHECKING:
    from brisk.execution.loading import LoadedLayer

MOST_LAYERS, MOST_WEIGHT_BYTES = 200, 32 << 20
"""Of a program worth a try; a larger one runs too long for one step."""

MOST_STEP_NS = 2_000_000
"""A segment's time."""

MOST_RECORDING_NS = 6_000_000
"""A recording that has taken longer is given up after the layer at hand."""

MOST_GIVEN_UP = 4
"""Attempts given up as too long after which the program is not tried again."""

MOST_SIGNATURES, MOST_COUNTED = 8, 64

RUNS = frozenset({3, 10, 100})
"""At which runs of the same shapes a segment is tried: again where it was slow by chance."""

_TIMED_RUNS = 6

_GAIN_OF_THREADS = 1.1
"""How many times faster several threads have to be than one, to be used for a segment."""

_REFUSED_OPERATORS = frozenset(
    {
        *("If", "Loop", "Scan", "NonZero", "Unique", "Compress", "NonMaxSuppression"),
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("Bernoulli", "Multinomial", "Dropout", "Optional", "OptionalGetElement"),
        *("OptionalHasElement", "StringSplit", "StringConcat", "StringNormalizer"),
        *("RegexFullMatch", "TfIdfVectorizer", "ReverseSequence"),
    }
)

Signature: TypeAlias = tuple[Any, ...]
Replay: TypeAlias = Callable[..., "tuple[torch.Tensor, ...]"]
Found: TypeAlias = "tuple[Replay, Sequence[Any]]"
"""A segment, and the inputs in its order."""


class _TooLongError(Exception):
    """This recording takes longer than others can wait."""


def segment_refusal(program: Program, device: torch.device) -> str | None:
    """Why no run of the program can be a segment; None where one may be."""
    if device.type != "cpu":
        return f"device {device} is not the CPU"
    if len(program.layers) > MOST_LAYERS:
        return f"{len(program.layers)} layers, at most {MOST_LAYERS}"
    size = sum(array.nbytes for array in program.weights.values())
    if size > MOST_WEIGHT_BYTES:
        return f"{size} bytes of weights, at most {MOST_WEIGHT_BYTES}"
    if not program.inputs or program.captures:
        return "no inputs of its own"
    for variable in (*program.inputs, *program.outputs):
        if variable.type.container is not Container.TENSOR or variable.type.dtype == "string":
            return f"'{variable.name}' is no tensor of numbers"
    return next((reason for layer in program.layers if (reason := _refuse(layer))), None)


def _refuse(layer: Layer) -> str | None:
    operator = layer.main.operator
    if operator in _REFUSED_OPERATORS or operator.startswith("Sequence"):
        return f"{layer.main.describe()} does not make the same calls each time"
    return None


class Segments:
    """The segments of one loaded program, by input shapes. Any thread may ask at any time."""

    def __init__(
        self,
        layers: Sequence[LoadedLayer],
        inputs: Mapping[str, int],
        outputs: Sequence[int],
        refusal: str | None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """``inputs``, by name, and ``outputs``: slots. ``refusal``: why there will be none."""
        self.outputs = tuple(outputs)
        self.refusal = refusal
        self._names, self._slots = tuple(inputs), tuple(inputs.values())
        self._layers = layers
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._runs: dict[Signature, int] = {}
        self._made: dict[Signature, Replay] = {}
        self._given_up = 0

    def __len__(self) -> int:
        return len(self._made)

    def find(self, inputs: Mapping[str, Value]) -> Found | None:
        """The segment for a new job's inputs. Those that have one need no other check."""
        if not self._made or self.refusal is not None or len(inputs) != len(self._names):
            return None
        arguments = [inputs.get(name) for name in self._names]
        signature = _signature(arguments)
        replay = None if signature is None else self._made.get(signature)
        return None if replay is None else (replay, arguments)

    def learn(self, values: Sequence[Value]) -> Found | None:
        """Count a run of the slots' inputs; the segment, made now, where their time has come.

        Precondition: the inputs fit the program.
        """
        if self.refusal is not None:
            return None
        arguments = [values[slot] for slot in self._slots]
        signature = _signature(arguments)
        if signature is None:
            return None
        with self._lock:
            if len(self._made) >= MOST_SIGNATURES:
                return None
            if len(self._runs) >= MOST_COUNTED:
                self._runs.clear()
            runs = self._runs[signature] = self._runs.get(signature, 0) + 1
            if runs not in RUNS:
                return None
            replay = self._try_to_make(values, arguments)
            if replay is None:
                return None
            self._made[signature] = replay
        return replay, arguments

    def _try_to_make(self, values: Sequence[Value], inputs: Sequence[Any]) -> Replay | None:
        """A refusal is for good: what the layers do once they may do at other shapes."""
        try:
            return self._make(values, inputs)
        except _TooLongError:
            self._given_up += 1
            if self._given_up == MOST_GIVEN_UP:
                self.refusal = (
                    f"longer than {MOST_STEP_NS / 1e6:.0f} ms, seen {MOST_GIVEN_UP} times"
                )
        except RefusedError as error:
            self.refusal = str(error)
        except Exception as error:  # noqa: BLE001  # a frame's layers tell it to who has asked
            self.refusal = f"{type(error).__name__}: {error}"
        return None

    def _make(self, values: Sequence[Value], inputs: Sequence[Any]) -> Replay:
        """Record twice, compare the recordings, then the replay with what the layers gave."""
        if len({id(value) for value in inputs}) < len(inputs):
            raise _TooLongError  # the recorder could not tell them apart: nothing for this shape
        first, expected = self._record(values)
        second, again = self._record(values)
        if first.lines != second.lines or not _same(first.bound, second.bound):
            raise RefusedError("two runs on the same values differ in their calls")
        replay = second.finish(again)
        if not all(map(_agree, replay(*inputs), expected)):
            raise RefusedError("the replay's results differ from the layers'")
        taken_ns = self._time(replay, inputs)
        if torch.get_num_threads() > 1:
            alone = on_one_thread(replay)
            alone_ns = self._time(alone, inputs)
            if alone_ns <= _GAIN_OF_THREADS * taken_ns:
                replay, taken_ns = alone, alone_ns
        if taken_ns > MOST_STEP_NS:
            raise _TooLongError
        return replay

    def _time(self, replay: Replay, inputs: Sequence[Any]) -> int:
        """The least in nanoseconds of a few replays."""
        times = []
        for _ in range(_TIMED_RUNS):
            started_ns = self._clock_ns()
            replay(*inputs)
            times.append(self._clock_ns() - started_ns)
        return min(times)

    def _record(self, values: Sequence[Value]) -> tuple[Recorder, list[Value]]:
        slots = list(values)
        recorder = Recorder([slots[slot] for slot in self._slots])  # type: ignore[misc]  # seen
        until_ns = self._clock_ns() + MOST_RECORDING_NS
        with recorder:
            for layer in self._layers:
                made = layer.kernel(*[slots[slot] for slot in layer.reads])
                for slot, value in zip(layer.writes, made, strict=True):
                    slots[slot] = value
                if self._clock_ns() > until_ns:
                    raise _TooLongError
        return recorder, [slots[slot] for slot in self.outputs]


def on_one_thread(replay: Replay) -> Replay:
    """Of small operators, waking a second thread takes longer than what it takes over."""

    def replay_alone(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return replay(*inputs)
        finally:
            torch.set_num_threads(threads)

    return replay_alone


def _signature(inputs: Sequence[Any]) -> Signature | None:
    """What the kernels' calls follow from; None where an input is no tensor."""
    parts = []
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            return None
        parts.append((value.shape, value.stride(), value.dtype))
    return tuple(parts)


def _same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether both recordings were bound to the same tensors and equal numbers."""
    return len(left) == len(right) and all(
        a is b if isinstance(a, torch.Tensor) else a is b or a == b
        for a, b in zip(left, right, strict=True)
    )


def _agree(made: torch.Tensor, expected: Value) -> bool:
    return isinstance(expected, torch.Tensor) and bool(
        made.shape == expected.shape
        and made.dtype == expected.dtype
        and torch.allclose(made, expected, rtol=1e-5, atol=1e-7, equal_nan=True)
    )
