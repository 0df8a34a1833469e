"""The compiled executor, once for each process: there, being compiled, or impossible."""

from __future__ import annotations

import ctypes
import threading
from ctypes import POINTER, c_float, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from brisk.compiled.asked import LookUpEntry
from brisk.compiled.compiler import (
    Build,
    CompilerError,
    compile_library,
    is_sealed,
    is_whole,
    plan_build,
)
from brisk.compiled.layer import AttentionEntry, LayerEntry
from brisk.compiled.table import StepEntry
from brisk.compiled.verdict import VerdictEntry


class Library:
    """The library's functions. Any thread may call them; computing, they exclude each other, but
    for threads that have taken a workplace of their own.

    ``run`` holds the interpreter's lock, ``run_unlocked`` gives it up meanwhile, for programs with
    look-ups beside them. Runs of one network wait for each other. The other calls give it up, too.
    All return 1 where there is no memory.

    ``name``: another one for other sources, compilers and processors.

    ``panel``, ``block``: outputs and inputs that a layer's weights are padded to whole ones of.
    """

    def __init__(self, path: Path) -> None:
        """Raises CompilerError where another user can have written the file, where it is not as it
        was made, or cannot be loaded.
        """
        try:
            if not is_sealed(path):
                raise CompilerError(f"'{path}' is not as it was compiled")
        except OSError as error:
            raise CompilerError(f"'{path}' is not loaded: {error}") from error
        try:
            functions: Any = ctypes.PyDLL(str(path))
        except OSError as error:
            raise CompilerError(f"'{path}' cannot be loaded: {error}") from error
        if functions.brisk_step_bytes() != ctypes.sizeof(StepEntry):
            raise CompilerError(f"'{path}' reads steps of another size")
        if functions.brisk_layer_bytes() != ctypes.sizeof(LayerEntry):
            raise CompilerError(f"'{path}' reads layers of another size")
        if functions.brisk_verdict_bytes() != ctypes.sizeof(VerdictEntry):
            raise CompilerError(f"'{path}' reads verdicts of another size")
        if functions.brisk_look_up_bytes() != ctypes.sizeof(LookUpEntry):
            raise CompilerError(f"'{path}' reads look-ups of another size")
        if functions.brisk_attention_bytes() != ctypes.sizeof(AttentionEntry):
            raise CompilerError(f"'{path}' reads attentions of another size")
        self.path = path
        self.panel: int = functions.brisk_panel()
        self.block: int = functions.brisk_block()
        self._new = functions.brisk_network_new
        self._new.argtypes = (POINTER(StepEntry), c_int, c_int64, c_void_p)
        self._new.restype = c_void_p
        self._packed = functions.brisk_network_packed
        self._packed.argtypes, self._packed.restype = (POINTER(StepEntry), c_int), c_int64
        self._pack = functions.brisk_network_pack
        self._pack.argtypes, self._pack.restype = (POINTER(StepEntry), c_int, c_void_p), None
        self._reserve = functions.brisk_network_reserve
        self._reserve.argtypes, self._reserve.restype = (c_void_p, c_int), c_int
        self._threads = functions.brisk_threads
        self._take_workplace = functions.brisk_workplace_take
        self._take_workplace.argtypes, self._take_workplace.restype = (), c_void_p
        self.part = functions.brisk_workplace_part
        """A workplace's address: its thread uses the caller's processor no more."""
        self.part.argtypes, self.part.restype = (c_void_p,), None
        self.delete = functions.brisk_network_delete
        self.delete.argtypes, self.delete.restype = (c_void_p,), None
        self.run = functions.brisk_network_run
        """network, images, threads, array of inputs' addresses, array of outputs'."""
        self.run.argtypes, self.run.restype = (c_void_p, c_int, c_int, c_void_p, c_void_p), c_int
        unlocked: Any = ctypes.CDLL(str(path))
        self.run_unlocked = unlocked.brisk_network_run
        self.run_unlocked.argtypes, self.run_unlocked.restype = self.run.argtypes, c_int
        self.run_layer = unlocked.brisk_layer_run
        """LayerEntry's address, threads, images, height and width of the source, of the result,
        addresses of source, second operand (or None) and result."""
        self.run_layer.argtypes = (c_void_p, *[c_int] * 6, *[c_void_p] * 3)
        self.run_layer.restype = c_int
        self.look_up = unlocked.brisk_look_up
        """LookUpEntry's address, that of the hidden outputs, rows, threshold: whether a row is
        answered, or far. Gives the interpreter's lock up and excludes nothing else."""
        self.look_up.argtypes, self.look_up.restype = (c_void_p, c_void_p, c_int, c_float), c_int
        self.new_lane = functions.brisk_lane_new
        """The address of a lane with a thread of its own; None where there can be none."""
        self.new_lane.argtypes, self.new_lane.restype = (), c_void_p
        self.delete_lane = unlocked.brisk_lane_delete
        self.delete_lane.argtypes, self.delete_lane.restype = (c_void_p,), None
        self.offer = functions.brisk_lane_offer
        """Lane, LookUpEntry's address: whether the lane makes it; it stays there until then."""
        self.offer.argtypes, self.offer.restype = (c_void_p, c_void_p), c_int
        self.watch = functions.brisk_watch
        """LookUpEntry's address: ``run`` and ``run_unlocked`` of this thread end, nothing made,
        where it ``stops``. None: no more."""
        self.watch.argtypes, self.watch.restype = (c_void_p,), None
        self.attend = unlocked.brisk_attention_run
        """AttentionEntry's address, threads, addresses of query, key, value, mask (or None) and
        result."""
        self.attend.argtypes, self.attend.restype = (c_void_p, c_int, *[c_void_p] * 5), c_int
        self.normalise_rows = unlocked.brisk_rows_normalise
        """Threads, rows, width, epsilon, addresses of scale, bias (or None), source, result."""
        self.normalise_rows.argtypes = (c_int, c_int64, c_int64, c_float, *[c_void_p] * 4)
        self.normalise_rows.restype = c_int

    @property
    def name(self) -> str:
        return self.path.stem

    def take_workplace(self) -> int | None:
        """Let the calling thread, which must not end, compute beside all others from now on.

        The workplace's address, for ``part``; None where there is no memory for it.
        """
        return self._take_workplace() or None

    def packed(self, steps: ctypes.Array[StepEntry]) -> np.ndarray:
        """The steps' weights as its kernels read them: float32, for ``new_network``."""
        made = np.zeros(self.packed_floats(steps), np.float32)
        self._pack(steps, len(steps), made.ctypes.data)
        return made

    def packed_floats(self, steps: ctypes.Array[StepEntry]) -> int:
        """How many there are of ``packed``."""
        return int(self._packed(steps, len(steps)))

    def new_network(
        self,
        steps: ctypes.Array[StepEntry],
        image_floats: int,
        packed: np.ndarray | None = None,
    ) -> int:
        """The address of a network with ``image_floats`` of scratch memory for each image that is
        reserved; MemoryError where there is no memory for it.

        ``packed``: what ``packed`` gave of such steps, to be kept alive, and the steps' own
        weights are not read; None: they are copied, but for those of LAYERs, to be kept alive.
        """
        memory = None if packed is None else packed.ctypes.data
        address: int | None = self._new(steps, len(steps), image_floats, memory)
        if not address:
            raise MemoryError(f"the weights of {len(steps)} steps of a run of small layers")
        return address

    def reserve(self, network: int, images: int) -> None:
        """Let runs have up to ``images`` images. Raises MemoryError."""
        if self._reserve(network, images):
            raise MemoryError(f"scratch memory for {images} images of a run of small layers")

    def use_threads(self, count: int) -> None:
        """Runs of the caller's workplace may ask for ``count`` threads from now on."""
        self._threads(count)


class _Shelf:
    """The process's library, and why there is none. The lock guards every field."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.library: Library | None = None
        self.reason = ""
        self.is_final = False
        self.compiling: threading.Thread | None = None

    def settle(self, build: Build | None, reason: str) -> None:
        """Load what ``build`` made, or note why there is nothing."""
        if build is not None:
            try:
                self.library = Library(build.library)
            except CompilerError as error:
                reason = str(error)
        self.reason, self.is_final = reason, True


_shelf = _Shelf()


def library() -> Library | None:
    """The executor; None where it is not there yet, or cannot be. Never blocks on a compiler.

    The first call loads it, or begins to compile it in the background.
    """
    if _shelf.is_final:
        return _shelf.library
    with _shelf.lock:
        if not _shelf.is_final and _shelf.compiling is None:
            try:
                build = plan_build()
            except CompilerError as error:
                _shelf.settle(None, str(error))
                return None
            if is_whole(build.library):
                _shelf.settle(build, "")
            else:
                _shelf.reason = f"it is being compiled by '{build.compiler}'"
                _shelf.compiling = threading.Thread(
                    target=_compile, args=(build,), name="brisk-compiler", daemon=True
                )
                _shelf.compiling.start()
        return _shelf.library


def absence() -> str:
    """Why ``library`` gives None; empty where it does not."""
    with _shelf.lock:
        return _shelf.reason


def is_final() -> bool:
    """Whether ``library`` will never give anything else than now."""
    return _shelf.is_final


def wait_until_settled() -> Library | None:
    """As ``library``, but after the compiler has ended."""
    library()
    if _shelf.compiling is not None:
        _shelf.compiling.join()
    return library()


def _compile(build: Build) -> None:
    reason = ""
    try:
        compile_library(build)
    except CompilerError as error:
        reason = str(error)
    with _shelf.lock:
        _shelf.settle(None if reason else build, reason)
