"""Prepares a runtime before any model comes, so that no load has to."""

from __future__ import annotations

from brisk.lean_numpy import on_demand
from brisk.runtime.log import LOGGER


def import_everything(device: str) -> None:
    """Import what loading and running models needs, and compute nothing.

    Called in the process that workers are forked from.
    """
    with on_demand():
        import numpy  # noqa: F401

    import brisk.runtime.worker_main

    if device != "cpu":
        _import_gpu()
        return
    import brisk.runtime.sessions.segment_session  # noqa: F401
    from brisk.segments.onnxruntime import onnxruntime

    onnxruntime()


def _import_gpu() -> None:
    """Load CUDA's libraries without touching the device, which would not survive a fork.

    If a library is missing, the worker reports it to its clients.
    """
    import brisk.runtime.sessions.gpu_session  # noqa: F401
    from brisk.fork_server.build import GPU_MEMORY, WORKSPACE, CompilerError, gpu_library
    from brisk.gpu.libraries import give_workspaces, load_libraries
    from brisk.gpu.memory_limit import MemoryLimit, set_limit
    from brisk.runtime.sessions.device import PROVIDER
    from brisk.runtime.sessions.open_session import import_what_files_need
    from brisk.runtime.settings import read_settings
    from brisk.segments.onnxruntime import onnxruntime

    if PROVIDER not in onnxruntime().get_available_providers():
        return
    loaded = load_libraries()
    try:
        give_workspaces(gpu_library(WORKSPACE), loaded)
    except (CompilerError, OSError) as error:
        LOGGER.warning(f"models that multiply matrices on a GPU run in one launch: {error}")
    if limit_bytes := read_settings().gpu_bytes:
        try:
            set_limit(MemoryLimit(gpu_library(GPU_MEMORY), loaded, limit_bytes))
        except (CompilerError, OSError) as error:
            LOGGER.error(f"memory of the GPU cannot be limited: {error}")
    import_what_files_need()
