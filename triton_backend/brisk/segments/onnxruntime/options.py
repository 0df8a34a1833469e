"""An entry's tuning as ONNX Runtime's options of sessions and runs."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from brisk.errors import InvalidModelError
from brisk.segments.onnxruntime.library import onnxruntime
from brisk.segments.onnxruntime.operator_libraries import loadable_name
from brisk.tuning import ALL, BASIC, EXTENDED, NONE, SessionTuning

SPIN_US = 50
"""How long a thread of a session spins before it sleeps. With 20, 8 rows of ``mlp`` took 1.17
times as long as with ONNX Runtime's default (until some 16 ms have gone), with 50 not."""

SEVERAL_SPIN_US = 1000
"""The same in a model of several segments, whose threads stop when their segment ends: the next
one's need the processors, and so do a start's lanes: only warm sessions do. ``encoder``, of six
segments, took 1.04 times ONNX Runtime's time so, with
50 us and no end 1.11; convolutional models gained up to 7 %. Waking them costs a run some 40 us,
which is more than all of a small model."""

_SPINS, _SPIN_DURATION = "session.intra_op.allow_spinning", "session.intra_op.spin_duration_us"
_BOUNDED_SPINNING = (1, 27)
"""The first release that is sure to know a bound; older ones take no notice and spin on."""


def session_options(
    tuning: SessionTuning, threads: int, *, is_warm: bool, spins_long: bool = False
) -> Any:
    """``SessionOptions`` on at most ``threads`` threads that soon sleep with nothing to do.

    ``is_warm`` False: for the session that starts at once, whose graph stays as it is and whose
    weights are not packed, whatever the entry allows; all else is the same.
    ``spins_long``: a warm segment of several. What the entry says wins over what Brisk prefers.
    Raises InvalidConfigurationError and InvalidModelError where the tuning cannot be had.
    """
    tuning.check()
    library = onnxruntime()
    options = library.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = _bounded(tuning.intra_op_threads, threads)
    options.inter_op_num_threads = 1
    if tuning.is_parallel:
        options.execution_mode = library.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = _bounded(tuning.inter_op_threads, threads)
    options.enable_cpu_mem_arena = tuning.uses_arena
    options.enable_mem_pattern = tuning.uses_memory_pattern
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
    """How the threads of an operator wait for the next one, where the entry does not say.

    They spin for at most SPIN_US, which bridges the gap between two operators and costs others
    next to nothing: threads that sleep at once double the time of a network of 50 us.
    """
    if any(key in settings for key in (_SPINS, _SPIN_DURATION)):
        return {}
    if _release(onnxruntime().__version__) < _BOUNDED_SPINNING:
        return {_SPINS: "0"}
    if spins_long:
        return {_SPIN_DURATION: str(SEVERAL_SPIN_US), "session.force_spinning_stop": "1"}
    return {_SPIN_DURATION: str(SPIN_US)}


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _register(options: Any, path: str) -> None:
    """Let sessions with these options know the operators of the library at ``path``.

    Raises InvalidModelError naming the library: it cannot be loaded, is no such library, or could
    have been written by others.
    """
    name = loadable_name(path)
    try:
        options.register_custom_ops_library(name)
    except Exception as error:
        raise InvalidModelError(
            f"the library of custom operators {path} cannot be loaded: {error}; expected a shared "
            "library for ONNX Runtime with the function RegisterCustomOps"
        ) from error


def run_options(tuning: SessionTuning) -> Any:
    """``RunOptions`` of every run; None where nothing is to be said."""
    if not tuning.shrinks_arena:
        return None
    options = onnxruntime().RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def _bounded(asked: int, threads: int) -> int:
    return min(asked, threads) or threads


@functools.cache
def _share_arena() -> None:
    """One arena for all sessions of the process: what one lets go of serves the others."""
    library = onnxruntime()
    memory = library.OrtMemoryInfo(
        "Cpu", library.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, library.OrtMemType.DEFAULT
    )
    # as much as is asked for: a request that got no memory made the next region double in vain
    library.create_and_register_allocator(memory, library.OrtArenaCfg(0, 1, -1, -1))
