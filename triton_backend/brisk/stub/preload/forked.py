"""The fork server's part of the frontend: what its stubs shall have in memory.

Run by ``brisk/fork_server/source/preload.cpp`` before the stub's own ``main``.
"""

from __future__ import annotations

import os
import signal
import sys

from brisk.fork_server.server import ForkServer
from brisk.fork_server.start import ForkSettings, say_not_forked, take_listener, take_settings
from brisk.os_priority import set_process
from brisk.protocol.host import stub_process
from brisk.stub.preload.numpy_import import import_request_handler


def serve() -> None:
    """Fork stubs until tritonserver ends. Returns in each stub; the fork server itself exits."""
    settings = take_settings()
    listener = take_listener(settings)
    if not _is_like(settings):
        os._exit(1)
    set_process(settings.niceness)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)  # as Python does where a stub starts it
    try:
        fork_server = ForkServer(listener, settings.server)
        _import_frontend()
        sys.path.remove(settings.backend)  # which the stub adds by itself
        if (threads := len(os.listdir("/proc/self/task"))) > 1:
            say_not_forked(f"the frontend's imports have started {threads - 1} threads")
        elif fork_server.serve(stub_process.become):
            return
    except OSError as error:
        say_not_forked(str(error))
    os._exit(0)


def _is_like(settings: ForkSettings) -> bool:
    """Whether this Python runs under the same settings as one that the stub has started."""
    if list(sys.flags) == settings.flags:
        return True
    say_not_forked(
        f"Python's flags are {list(sys.flags)} in the fork server, {settings.flags} in a stub"
    )
    return False


def _import_frontend() -> None:
    import_request_handler()  # first, since it imports numpy without threads
    import asyncio  # noqa: F401 - Triton's stub imports it and its thirty modules before the model
    import inspect  # noqa: F401 - the first line of log needs it

    import brisk.stub.backend
    import brisk.stub.config.completion
    import brisk.stub.config.pipeline_signature  # noqa: F401
