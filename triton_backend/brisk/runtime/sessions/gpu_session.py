"""A session on a GPU: ONNX Runtime computes; its launches are captured and launched again."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from brisk.artefacts.content import note_digests
from brisk.errors import InvalidModelError
from brisk.gpu.device import Device
from brisk.gpu.driver import CudaError, Stream
from brisk.gpu.memory_limit import naming_the_limit
from brisk.gpu.network import CapturedNetwork, CapturedRun, Instance
from brisk.ownership import make_private
from brisk.runtime.log import LOGGER
from brisk.runtime.sessions.device import PROVIDER, gpu
from brisk.runtime.sessions.identity import note_of, whole_copy_at
from brisk.runtime.sessions.session import Due, Frame, Session
from brisk.runtime.sessions.session_caches import SessionCaches
from brisk.segments.frame import run_serially
from brisk.segments.model.opening import Provider
from brisk.segments.model.sources import BareModel
from brisk.segments.onnxruntime import onnxruntime
from brisk.segments.prepared.trial import SIZES, made_up
from brisk.segments.program import SegmentProgram, requested_slots
from brisk.segments.starting import open_warm_program
from brisk.segments.values import Value
from brisk.tuning import SessionTuning, Setting

if TYPE_CHECKING:
    from brisk.copies.local import LocalCopy


class GpuSession(Session):
    origin = "model"
    wants_artefact = False

    def __init__(
        self,
        path: Path,
        opened: OpenedNetwork,
        tuning: SessionTuning,
        copy: LocalCopy | None = None,
    ) -> None:
        """``copy``: the copy that the file belongs to, if the model lies elsewhere."""
        program, network, _ = opened
        plan = program.plan
        self.path = path
        self.table = program.segments
        self.inputs, self.outputs = (*plan.inputs, *plan.fixed), plan.outputs
        self.threads = 1
        self.caches = SessionCaches()
        self.load_ns = 0
        self.network = network
        self._opened, self._tuning = opened, tuning
        self._copy = copy  # which is not removed while the session may read its file again
        self._fixed = frozenset(variable.name for variable in plan.fixed)
        self._taking_optional: OpenedNetwork | None = None
        self.summary = self._words()

    def _words(self) -> str:
        captures = [each for each in self.network.captured.values() if each is not None]
        if not captures:
            return "computed by ONNX Runtime on the GPU, not captured yet"
        nodes = sum(captures[0].nodes.values())
        return (
            f"{nodes} launches of ONNX Runtime captured in {len(captures[0].chunks)} chunks, "
            f"{captures[0].run_us / 1e3:.2f} ms on the GPU"
        )

    def start(
        self,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        agreement: float | None = None,
        dues: Sequence[Due] = (),
    ) -> Frame:
        opened = self._opened
        if not self._fixed.isdisjoint(inputs):
            opened = self._taking_optional or self._open_taking_optional()
        program, network, _ = opened
        values = program.bind_inputs(inputs)
        requested_slots(program.outputs, requested)
        return CapturedRun(network, _given(program, values), requested)

    def _open_taking_optional(self) -> OpenedNetwork:
        """Open the network that takes optional inputs, for the first request that gives one.
        Raises BriskError."""
        opened = _open(self.path, self._tuning, loaded=self._opened.source)
        self._taking_optional = opened
        return opened

    def lost_device(self) -> None:
        """Note that the device was lost, possibly because of what was captured: from the third
        time on nothing captured is launched any more."""
        with contextlib.suppress(OSError, ValueError, InvalidModelError):
            note = note_of(self.path, "captures")
            make_private(note.parent)
            note.write_text(str(_losses(note) + 1))

    def load_warm(self, may_go_on: Callable[[], bool]) -> bool:
        may_open_again = self._fixed or self.network.opens_others
        if may_open_again and may_go_on():
            note_digests(self.path, self._opened.source.made_of)
        return True

    def close(self) -> None:
        super().close()
        self.network.close()
        if self._taking_optional is not None:
            self._taking_optional.network.close()


def load_gpu_session(
    path: Path,
    tuning: SessionTuning = SessionTuning(),  # noqa: B008  # immutable
) -> GpuSession:
    """Load a session on a GPU (``load_session``), once all of the model is here. Runs of batch 1
    are captured at once, if inputs can be made up.

    Raises InvalidModelError if ONNX Runtime does not take the model or the device has no memory
    for it, InvalidConfigurationError for a tuning that cannot be applied, UnavailableError if the
    model's bytes do not arrive, and CudaError if the device is lost.
    """
    copy = whole_copy_at(path)
    opened = _open(path, tuning)
    _try_out(opened)
    return GpuSession(path, opened, tuning, copy)


class OpenedNetwork(NamedTuple):
    """A model on a GPU."""

    program: SegmentProgram
    network: CapturedNetwork
    source: BareModel


_PLANNED = frozenset({"LSTM", "GRU", "RNN"})
"""Operators, in addition to convolutions, that cuDNN plans."""


def _open(path: Path, tuning: SessionTuning, *, loaded: BareModel | None = None) -> OpenedNetwork:
    """Open a model; ``loaded``: the same one as it was loaded, to take optional inputs as well.
    Raises BriskError, and CudaError if the device cannot be used."""
    device = gpu()
    device.context.enter()

    def open_one(first: BareModel | None) -> tuple[SegmentProgram, BareModel, Instance]:
        with _lent_stream(device) as stream:
            source = BareModel(
                path,
                1,
                tuning=tuning,
                longest_ns=math.inf,
                provider=provider_on(device.ordinal, stream, tuning.cuda),
                takes_optional=loaded is not None,
            )
            if first is not None and not first.is_of(path, source.made_of):
                raise InvalidModelError(f"{path} has changed since it was loaded")
            with naming_the_limit():
                program = open_warm_program(source)
            source.check_not_written()
        (segment,) = program.segments
        run = partial(run_serially, program)
        return program, source, Instance(segment.session.session, stream, run)

    def open_another() -> Instance:
        return open_one(source)[2]

    program, source, first = open_one(loaded)
    (segment,) = program.segments
    plans = any("Conv" in name or name in _PLANNED for name in source.operators)
    network = CapturedNetwork(
        device,
        first,
        open_another if plans else None,
        onnxruntime().RunOptions,
        lambda text: LOGGER.info(f"{path}: {text}"),
        may_capture=set(program.outputs) <= set(segment.outputs) and _may_be_captured(path),
    )
    return OpenedNetwork(program, network, source)


@contextlib.contextmanager
def _lent_stream(device: Device) -> Iterator[Stream]:
    """Lend a stream, which is given back if the block raises."""
    stream = device.borrow()
    try:
        yield stream
    except BaseException:
        device.give_back(stream)
        raise


MOST_LOSSES = 2
"""The losses of the device during runs of a model from which on these are not captured: one may be
another model's fault."""


def _may_be_captured(path: Path) -> bool:
    try:
        losses = _losses(note_of(path, "captures"))
    except (OSError, ValueError, InvalidModelError):
        return True
    if losses >= MOST_LOSSES:
        LOGGER.warning(
            f"{path}: the GPU was lost {losses} times while it ran; its runs are not captured"
        )
    return losses < MOST_LOSSES


def _losses(note: Path) -> int:
    return int(note.read_text() or "0") if note.exists() else 0


def provider_on(ordinal: int, stream: Stream, settings: Sequence[Setting] = ()) -> Provider:
    """Return ONNX Runtime's provider for the device, which issues to ``stream``. ``settings``: the
    entry's of CUDA_OPTIONS."""
    return PROVIDER, {
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",
        **dict(settings),
        "device_id": str(ordinal),
        "user_compute_stream": str(stream.handle),
    }


def _given(program: SegmentProgram, values: Sequence[Any]) -> dict[str, Any]:
    """Return the session's inputs by name, from a frame's slots."""
    (segment,) = program.segments
    return {name: values[slot] for name, slot in zip(segment.inputs, segment.reads, strict=True)}


def _try_out(opened: OpenedNetwork) -> None:
    """Capture a run of made-up inputs of the first sizes that the model takes."""
    program, network, _ = opened
    for size in SIZES if network.may_capture else ():
        try:
            inputs = made_up(program.plan, size)
            values = _given(program, program.bind_inputs(inputs))
            network.capture(CapturedRun(network, values, ()).key, values).result()
        except CudaError:
            raise
        except Exception:  # noqa: BLE001  # made-up inputs need not suit a model
            continue
        break
