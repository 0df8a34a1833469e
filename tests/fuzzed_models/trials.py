"""What a worker does with a model, tried in a forked child that may hang, grow or die of it.

The child sends a line as it gets to each stage, so a death is known by the last one. Afterwards it
compares with ONNX Runtime's own session of the file, not optimised either.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from brisk.errors import BriskError
from brisk.graph.files.element_types import element_of_dtype
from brisk.segments.frame import run_serially
from brisk.segments.model import cutting
from brisk.segments.model.sources import BareModel
from brisk.segments.onnxruntime import onnxruntime
from brisk.segments.starting import start_segments

PATIENCE_S = 10.0
MEMORY_BYTES = 1 << 30
"""Of one child: an allocation above it fails."""

MOST_ELEMENTS = 1 << 16
"""Of an input; a model that wants more is loaded, not run."""

ROUNDING = 1e-3
"""Of the largest value of an output: a step of float16."""


class Kind(Enum):
    SERVED = "served"
    SERVED_UNLIKE = "served, where ONNX Runtime by itself refuses the model or its run"
    NOT_RUN = "loaded, inputs too large to try"
    REFUSED = "refused, naming the file"
    RUN_REFUSED = "loaded, its run refused"
    CRASHED_LOADING = "ONNX Runtime died while it loaded"
    CRASHED_RUNNING = "ONNX Runtime died while it ran"
    CRASHED_PEER = "served; ONNX Runtime by itself died"
    ENDLESS = "its run took too long"
    HUNG = "hung before its run"
    NAMELESS = "refused without naming the file"
    RAISED = "raised something else"
    WRONG = "answered wrongly"


FORBIDDEN = frozenset({Kind.HUNG, Kind.NAMELESS, Kind.RAISED, Kind.WRONG})


@dataclass(frozen=True, slots=True)
class Outcome:
    """``peak_bytes``: most resident memory of the child."""

    kind: Kind
    text: str
    peak_bytes: int
    seconds: float


def try_model(
    path: Path, cut: bool, perform: Callable[[Path, bool, int], None] | None = None
) -> Outcome:
    """``cut``: at every boundary. Precondition: one thread, which has computed nothing."""
    reading, writing = os.pipe()
    started_s = time.monotonic()
    child = os.fork()
    if not child:
        os.close(reading)
        _behave()
        with contextlib.suppress(BaseException):
            _serve(path, cut, writing)
        os._exit(0)
    os.close(writing)
    lines, hung = _read(reading, child, started_s + PATIENCE_S)
    os.close(reading)
    _, status, usage = os.wait4(child, 0)
    kind, text = _judge(lines, hung, status)
    return Outcome(kind, text, usage.ru_maxrss << 10, time.monotonic() - started_s)


def _behave() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    onnxruntime()


def _read(reading: int, child: int, until_s: float) -> tuple[list[str], bool]:
    received = b""
    while True:
        left_s = until_s - time.monotonic()
        ready, _, _ = select.select([reading], [], [], max(left_s, 0))
        if not ready:
            os.kill(child, signal.SIGKILL)
            return received.decode("utf-8", "replace").splitlines(), True
        part = os.read(reading, 1 << 16)
        if not part:
            return received.decode("utf-8", "replace").splitlines(), False
        received += part


def _judge(lines: list[str], hung: bool, status: int) -> tuple[Kind, str]:
    last, _, text = (lines[-1] if lines else "loading ").partition(" ")
    running = {"running": Kind.CRASHED_RUNNING, "comparing": Kind.CRASHED_PEER}
    if last in Kind.__members__:
        return Kind[last], text
    if hung:
        late = {"running": Kind.ENDLESS, "comparing": Kind.SERVED_UNLIKE}
        return late.get(last, Kind.HUNG), f"while {last}"
    if os.WIFSIGNALED(status):
        died = signal.Signals(os.WTERMSIG(status)).name
        return running.get(last, Kind.CRASHED_LOADING), died
    return Kind.RAISED, f"ended with {status} while {last}"


def _serve(path: Path, cut: bool, writing: int) -> None:
    """In the child."""

    def say(word: str, text: str = "") -> None:
        plain = "".join(each if each.isprintable() else "?" for each in text)
        os.write(writing, f"{word} {plain[:2000]}\n".encode("utf-8", "replace"))

    try:
        _serve_and_compare(path, cut, say)
    except BriskError as error:
        named = path.name in str(error)
        say(Kind.REFUSED.name if named else Kind.NAMELESS.name, str(error))
    except BaseException as error:  # noqa: BLE001  # whatever it is: a worker would have raised it, too
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {error}"
        say(Kind.RAISED.name, text)


def _serve_and_compare(path: Path, cut: bool, say: Callable[..., None]) -> None:
    if cut:
        cutting.LONGEST_SEGMENT_NS = 0
    say("loading")
    model = BareModel(path, 1)
    if _crosses_borders_in_float16(model):  # one session would keep more digits, and larger values
        cutting.LONGEST_SEGMENT_NS = float("inf")
        model = BareModel(path, 1)
    model.check()
    starting = start_segments(model)
    starting.table.work("trial")
    inputs = _inputs(model)
    if inputs is None:
        say(Kind.NOT_RUN.name)
        return
    say("running")
    try:
        answers = run_serially(starting.program, inputs)
    except BriskError as error:
        say(Kind.RUN_REFUSED.name, str(error))
        return
    say("comparing")
    _compare(path, inputs, answers, say)


def _crosses_borders_in_float16(model: BareModel) -> bool:
    return any(
        value.type.tensor_type.elem_type == TensorProto.FLOAT16
        for segment in list(model.segments)[:-1]
        for value in segment.proto.graph.output
    )


def _inputs(model: BareModel) -> dict[str, np.ndarray] | None:
    """Small ones; None where the model wants large ones, or no tensors."""
    rng = np.random.default_rng(0)
    made = {}
    for variable in model.plan.inputs:
        kind = variable.type
        if kind.container.value != "tensor" or kind.dtype is None:
            return None
        shape = tuple(each if isinstance(each, int) else 2 for each in kind.shape or ())
        if np.prod([float(each) for each in shape]) > MOST_ELEMENTS:
            return None
        if kind.dtype == "string":
            made[variable.name] = np.full(shape, "text", object)
            continue
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(element_of_dtype(kind.dtype)))
        made[variable.name] = (3 * rng.standard_normal(shape)).astype(dtype)
    return made


def _compare(
    path: Path,
    inputs: dict[str, np.ndarray],
    answers: dict[str, object],
    say: Callable[..., None],
) -> None:
    library = onnxruntime()
    options = library.SessionOptions()
    options.graph_optimization_level = library.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    names = list(answers)
    try:
        session = library.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        taken = {each.name for each in session.get_inputs()}
        given = {name: value for name, value in inputs.items() if name in taken}
        expected = session.run(names, given)
    except Exception as error:  # noqa: BLE001  # its own classes have no common one
        say(Kind.SERVED_UNLIKE.name, str(error))
        return
    for name, wanted in zip(names, expected, strict=True):
        mine = np.asarray(answers[name])
        same = mine.dtype == wanted.dtype and mine.shape == wanted.shape
        if not same or not _equal(mine, wanted):
            say(
                Kind.WRONG.name, f"'{name}': {mine.dtype}{mine.shape} {wanted.dtype}{wanted.shape}"
            )
            return
    say(Kind.SERVED.name)


def _equal(mine: np.ndarray, wanted: np.ndarray) -> bool:
    """Bits, or roundings: ONNX Runtime keeps a float16 value in float32 where no border is."""
    if mine.dtype == object:
        return bool((mine == wanted).all())
    if mine.tobytes() == wanted.tobytes():
        return True
    if mine.dtype.kind != "f":
        return False
    scale = float(np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0.0))
    return bool(np.allclose(mine, wanted, rtol=0, atol=ROUNDING * scale, equal_nan=True))
