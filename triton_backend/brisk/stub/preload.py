"""The fork server's main, which ``brisk/fork_server/source/preload.cpp`` calls: it imports the
modules that stubs share, and forks stubs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from brisk.fork_server.server import ForkServer
from brisk.fork_server.start import say_not_forked, take_listener, take_settings
from brisk.os_priority import set_process
from brisk.protocol import stub_process
from brisk.settings import computes_in_stubs


def _import_onnxruntime() -> None:
    """Import ONNX Runtime for stubs that will compute small models themselves, so that they share
    its memory.

    Raises OSError if the import has started threads, since the process may not fork then.
    """
    from brisk.stub.backend import one_blas_thread

    with contextlib.suppress(Exception), one_blas_thread():
        if not computes_in_stubs():
            return
        import brisk.stub.local.local_model  # noqa: F401
        from brisk.segments.onnxruntime import onnxruntime
        from brisk.segments.prepared.form import PreparedModel  # noqa: F401
        from brisk.segments.starting import open_warm_program  # noqa: F401

        onnxruntime()
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise OSError(f"the import of onnxruntime has started {threads - 1} threads")


def serve() -> None:
    """Fork stubs until tritonserver ends. Return in each stub; exit in the fork server.

    Called before the stub's own ``main``.
    """
    settings = take_settings()
    listener = take_listener(settings.listener)
    if list(sys.flags) != settings.flags:
        say_not_forked(
            f"Python's flags are {list(sys.flags)} in the fork server, {settings.flags} in a stub"
        )
        os._exit(1)
    set_process(settings.niceness)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)  # as Python does when a stub starts it
    try:
        fork_server = ForkServer(listener, settings.server)
        # Only now: what is imported looks at the process's niceness.
        from brisk.stub.backend import import_request_handler

        import_request_handler()  # first of what imports numpy, since it does so without threads
        import asyncio  # noqa: F401 - Triton's stub imports it and 30 modules before the model
        import inspect  # noqa: F401 - the first line of log needs it

        import brisk.stub.config.agreement  # noqa: F401

        sys.path.remove(settings.backend)  # which the stub adds by itself
        if (threads := len(os.listdir("/proc/self/task"))) > 1:
            say_not_forked(f"the stub's imports have started {threads - 1} threads")
        elif fork_server.serve(stub_process.become, _import_onnxruntime):
            return
    except OSError as error:
        say_not_forked(str(error))
    os._exit(0)
