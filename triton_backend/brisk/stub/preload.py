"""What a stub imports before it is asked for: in the fork server, and while its model loads.

Numpy is by far the longest import of a stub, which shows Triton's tensors by it and, but for hot
small models, computes nothing. So less of it is imported, and later than Triton's module would.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from brisk.lean_numpy import on_demand
from brisk.settings import computes_in_stubs

if TYPE_CHECKING:
    from brisk.stub.request_handler import RequestHandler

ENVIRONMENT = threading.RLock()
"""Held while this process's environment differs from what it is to hand on."""

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def import_request_handler() -> type[RequestHandler]:
    """The class, and with its module numpy."""
    with ENVIRONMENT, _one_blas_thread(), on_demand():
        from brisk.stub.request_handler import RequestHandler
    return RequestHandler


@contextlib.contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Numpy's linear algebra, when it is loaded, starts a thread for each further processor, which
    then keeps that processor from a loading worker for some 50 ms; here it does without, unless
    the user wants otherwise. A runtime that this process starts later inherits nothing of it.
    """
    if _BLAS_THREADS in os.environ:
        yield
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_BLAS_THREADS]


def _import_onnxruntime() -> None:
    """For stubs that will compute small models themselves: they share what it takes in memory.

    Raises OSError where it has started threads: nothing may be forked then.
    """
    with contextlib.suppress(Exception), ENVIRONMENT, _one_blas_thread():
        if not computes_in_stubs():
            return
        import brisk.stub.local_model  # noqa: F401
        from brisk.segments.prepared.form import PreparedModel  # noqa: F401
        from brisk.segments.session import onnxruntime
        from brisk.segments.starting import open_warm_program  # noqa: F401

        onnxruntime()
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise OSError(f"the import of onnxruntime has started {threads - 1} threads")


def serve() -> None:
    """The fork server: fork stubs until tritonserver ends. Returns in each stub; itself exits.

    Called by ``brisk/fork_server/source/preload.cpp`` before the stub's own ``main``.
    """
    from brisk.fork_server.server import ForkServer
    from brisk.fork_server.start import say_not_forked, take_listener, take_settings
    from brisk.os_priority import set_process
    from brisk.protocol import stub_process

    settings = take_settings()
    listener = take_listener(settings.listener)
    if list(sys.flags) != settings.flags:
        say_not_forked(
            f"Python's flags are {list(sys.flags)} in the fork server, {settings.flags} in a stub"
        )
        os._exit(1)
    set_process(settings.niceness)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)  # as Python does where a stub starts it
    try:
        fork_server = ForkServer(listener, settings.server)
        # Only now: what is imported looks at the process's niceness.
        import_request_handler()  # first, since it imports numpy without threads
        import asyncio  # noqa: F401 - Triton's stub imports it and 30 modules before the model
        import inspect  # noqa: F401 - the first line of log needs it

        import brisk.stub.backend
        import brisk.stub.config.agreement  # noqa: F401

        sys.path.remove(settings.backend)  # which the stub adds by itself
        if (threads := len(os.listdir("/proc/self/task"))) > 1:
            say_not_forked(f"the stub's imports have started {threads - 1} threads")
        elif fork_server.serve(stub_process.become, _import_onnxruntime):
            return
    except OSError as error:
        say_not_forked(str(error))
    os._exit(0)
