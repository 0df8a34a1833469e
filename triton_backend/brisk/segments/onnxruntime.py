"""Sessions of ONNX Runtime as an entry wants them; no other module imports the package.

``model.opening``, which makes sessions of ONNX models, needs ``onnx``; a start from a prepared
form needs only this module.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from brisk.errors import InvalidConfigurationError, InvalidModelError
from brisk.graph.files.element_types import COMPLEX, PACKED, dtype_of_element
from brisk.ownership import open_own
from brisk.tuning import ALL, BASIC, EXTENDED, NONE, SessionTuning

IN_PLACE_BYTES = 4096
"""The smallest size of initialisers that stay in the file."""

NOWHERE = ("/dev", "null")
"""Folder and file that weights in an artefact are said to lie in: ONNX Runtime looks whether the
file is there, but is given the weights themselves and never reads it."""

SPIN_US = 50
"""The time that a thread of a session spins before it sleeps. With 20, 8 rows of ``mlp`` took 1.17
times as long as with ONNX Runtime's default (until some 16 ms have gone), with 50 not."""

SEVERAL_SPIN_US = 1000
"""The spin time in a model of several segments, whose threads stop when their segment ends: the
next one's threads need the processors, and so do a start's loader threads, so only warm sessions
spin so long. ``encoder``, of six segments, took 1.04 times ONNX Runtime's time so, with 50 us and
no stop 1.11; convolutional models gained up to 7 %. Waking the threads costs a run some 40 us,
which is more than all of a small model."""

NEEDS_PACKING = "MatMulNBits"
"""An operator of ONNX Runtime's that computes products of weights of a few bits: packed, on 8-bit
activations where its accuracy level says so; not packed, on floats, whatever it says."""

FOLDER_ENTRY = "session.model_external_initializers_file_folder_path"

_SPINS, _SPIN_DURATION = "session.intra_op.allow_spinning", "session.intra_op.spin_duration_us"
_BOUNDED_SPINNING = (1, 27)
"""The first release that is sure to know a bound of spinning; older ones ignore it and spin on."""


@functools.cache
def onnxruntime() -> ModuleType:
    """Return the package. Raises InvalidConfigurationError if it is not installed.

    Official builds from 1.29 on send telemetry unless the variable is set before the import.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
    except ImportError as error:
        raise InvalidConfigurationError(
            f"onnxruntime cannot be imported in this Python: {error}; install it there"
        ) from error
    onnxruntime.set_default_logger_severity(4)  # errors are raised; warnings are for developers
    return onnxruntime


@dataclass(frozen=True, slots=True)
class Weight:
    """An initializer of a model."""

    name: str
    data: np.ndarray
    """The bytes, uint8, in place."""
    kind: int
    """The TensorProto type."""
    shape: tuple[int, ...]

    @property
    def array(self) -> np.ndarray:
        """The elements, in place; of a type of which each has bytes of its own."""
        return self.data.view(dtype_of_element(self.kind)).reshape(self.shape)


class StructureRun:
    """Runs a structure's session, whose weights are inputs, with the weights of one model.

    It is called like ``run_with_ort_values`` of that model's own session, with the model's names.
    """

    __slots__ = ("_bound", "_inputs", "_outputs", "_values", "_weights")

    def __init__(
        self,
        session: Any,
        inputs: Mapping[str, str],
        outputs: Mapping[str, str],
        weights: Mapping[str, Any],
    ) -> None:
        """Keep what a run needs.

        ``inputs``, ``outputs``: the session's names by the model's; ``weights``: OrtValues by the
        session's names, whose memory is not copied.
        """
        self._bound = session._sess
        self._inputs = inputs
        self._outputs = outputs
        self._weights = weights
        self._values = {name: weight._ortvalue for name, weight in weights.items()}

    def __call__(self, feeds: Mapping[str, Any], outputs: list[str], options: Any) -> Any:
        arguments = {**self._values}
        for name, value in feeds.items():
            arguments[self._inputs[name]] = value
        names = [self._outputs[name] for name in outputs]
        return self._bound.run_with_ort_values(arguments, names, options)

    def with_arrays(self, feeds: Mapping[str, Any], outputs: list[str], options: Any) -> Any:
        """Run like ``__call__``, of numpy arrays to numpy arrays: of strings, too."""
        arguments = {**self._weights}
        for name, array in feeds.items():
            arguments[self._inputs[name]] = array
        return self._bound.run([self._outputs[name] for name in outputs], arguments, options)


@dataclass(frozen=True, eq=False)  # without slots, so that it can be referred to weakly
class OrtSession:
    """A session of ONNX Runtime with the objects that must live as long as it."""

    session: Any
    """An ``InferenceSession``."""
    held: tuple[Any, ...]
    """The weights that the session reads in place."""
    shrinks_arena: bool = False
    """Whether each run gives memory back to the system."""
    run: StructureRun | None = None
    """Runs a structure's session with one model's weights; None if it is no structure's."""


_running: WeakValueDictionary[tuple[object, ...], OrtSession] = WeakValueDictionary()


def running(key: tuple[object, ...]) -> OrtSession | None:
    """Return the session that this process shares under ``key``; None: nothing uses one any
    more."""
    return _running.get(key)


def shared(key: tuple[object, ...], make: Callable[[], OrtSession]) -> OrtSession:
    """Return the session shared under ``key``, made if there is none. ``key``: all that it is made
    from, and how."""
    session = _running.get(key)
    return _running.setdefault(key, make()) if session is None else session


def value_in_place(weight: Weight) -> Any:
    """Return the weight as an OrtValue, not copied; None for types that ONNX Runtime must copy."""
    if weight.kind in PACKED or weight.kind in COMPLEX:
        return None
    make = onnxruntime().OrtValue.ortvalue_from_numpy_with_onnx_type
    dtype = dtype_of_element(weight.kind)
    # numpy has no dtype of its own for some (bfloat16, float8): their bits travel as integers
    carrier = dtype if dtype.kind != "V" else np.dtype(f"u{dtype.itemsize}")
    return make(weight.data.view(carrier).reshape(weight.shape), weight.kind)


def session_options(
    tuning: SessionTuning,
    threads: int,
    *,
    is_warm: bool,
    spins_long: bool = False,
    uses_memory_pattern: bool = True,
) -> Any:
    """Return ``SessionOptions`` for at most ``threads`` threads, which soon sleep when idle.

    ``is_warm`` False: for the session that starts at once, whose graph stays as it is and whose
    weights are not packed, whatever the entry allows; all else is the same. ``spins_long``: for a
    warm segment of several. The entry's settings win over Brisk's. Raises
    InvalidConfigurationError and InvalidModelError if the tuning cannot be applied.
    """
    tuning.check()
    library = onnxruntime()
    options = library.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = min(tuning.intra_op_threads, threads) or threads
    options.inter_op_num_threads = 1
    if tuning.is_parallel:
        options.execution_mode = library.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = min(tuning.inter_op_threads, threads) or threads
    options.enable_cpu_mem_arena = tuning.uses_arena
    if tuning.uses_memory_pattern is not None:
        uses_memory_pattern = tuning.uses_memory_pattern
    options.enable_mem_pattern = uses_memory_pattern
    levels = library.GraphOptimizationLevel
    options.graph_optimization_level = {
        ALL: levels.ORT_ENABLE_ALL,
        EXTENDED: levels.ORT_ENABLE_EXTENDED,
        BASIC: levels.ORT_ENABLE_BASIC,
        NONE: levels.ORT_DISABLE_ALL,
    }[tuning.optimisation if is_warm else NONE]
    entries = {
        "session.inter_op.allow_spinning": "0",
        **_waiting(dict(tuning.settings), spins_long=spins_long),
        "session.use_env_allocators": "1" if tuning.uses_arena else "0",
        **dict(tuning.settings),
    }
    if not is_warm:
        entries["session.disable_prepacking"] = "1"
    if entries["session.use_env_allocators"] == "1":
        _share_arena()
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    for path in tuning.operator_libraries:
        _register(options, path)
    return options


def _waiting(settings: Mapping[str, str], *, spins_long: bool) -> dict[str, str]:
    """Return settings for how an operator's threads wait for the next one; none if the entry has
    them.

    The threads spin for at most SPIN_US, which bridges the time between two operators and costs
    other threads next to nothing: threads that sleep at once double the time of a network of 50
    us.
    """
    if any(key in settings for key in (_SPINS, _SPIN_DURATION)):
        return {}
    release = tuple(map(int, re.findall(r"\d+", onnxruntime().__version__)[:2]))
    if release < _BOUNDED_SPINNING:
        return {_SPINS: "0"}
    if spins_long:
        return {_SPIN_DURATION: str(SEVERAL_SPIN_US), "session.force_spinning_stop": "1"}
    return {_SPIN_DURATION: str(SPIN_US)}


def _register(options: Any, path: str) -> None:
    """Register the custom operators of the library at ``path`` in ``options``.

    Raises InvalidModelError naming the library if it cannot be loaded, is no such library, or
    could have been written by other users.
    """
    name = _loadable_name(path)
    try:
        options.register_custom_ops_library(name)
    except Exception as error:
        raise InvalidModelError(
            f"the library of custom operators {path} cannot be loaded: {error}; expected a shared "
            "library for ONNX Runtime with the function RegisterCustomOps"
        ) from error


@functools.cache
def _share_arena() -> None:
    """Make one arena for all sessions of the process: memory that one frees serves the others."""
    library = onnxruntime()
    memory = library.OrtMemoryInfo(
        "Cpu", library.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, library.OrtMemType.DEFAULT
    )
    # grow by the size requested: else a request that got no memory doubles the next region
    library.create_and_register_allocator(memory, library.OrtArenaCfg(0, 1, -1, -1))


# Libraries of custom operators: who may write them, and the name by which each file is loaded.
#
# A library is executed, so it must lie where only this user and root can write. The dynamic loader
# goes by names: for a path that it knows, it returns what it has loaded from there, even if the
# file is another one by now. A new file of an old name would compute by the old operators, so it
# is requested by another spelling of its path, from which the loader loads the new file.

_known: dict[str, list[tuple[int, ...]]] = {}
"""Device, inode, size and time of each file that was loaded from a path, in order, by path."""
_lock = threading.Lock()


def _loadable_name(path: str) -> str:
    """Return a spelling of ``path`` by which the dynamic loader knows this very file or none.

    Any thread. Raises InvalidModelError if there is no such file, if other users could have
    written it, or if a file that is in use was written anew in its place.
    """
    real = os.path.realpath(path)
    try:
        descriptor = open_own(Path(real))
    except OSError as error:
        raise InvalidModelError(
            f"the library of custom operators {path} cannot be used: {error}"
        ) from error
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    with _lock:
        identities = _known.setdefault(real, [])
        if identity not in identities:
            if any(each[:2] == identity[:2] for each in identities) and _is_mapped(real):
                raise InvalidModelError(
                    f"the library of custom operators {path} was written anew while it is in use; "
                    "expected a new file that takes its place (write another one and rename it), "
                    "or that every entry which uses it is unloaded before"
                )
            identities.append(identity)
        turn = identities.index(identity)
    folder, name = os.path.split(real)
    return os.path.join(folder, "./" * turn + name)


def _is_mapped(path: str) -> bool:
    """Whether a file of that path is mapped into this process."""
    end = f" {path}\n".encode()
    with open("/proc/self/maps", "rb") as maps:
        return any(line.endswith(end) for line in maps)
