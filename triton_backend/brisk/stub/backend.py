"""The code that Triton calls: a model instance, from ``initialize`` to ``finalize``."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import triton_python_backend_utils as pb_utils

from brisk.errors import BriskError, as_utf8
from brisk.fork_server.start import attend_launchers, start_when_quiet
from brisk.interpreter import ENVIRONMENT
from brisk.lean_numpy import on_demand
from brisk.os_priority import set_threads
from brisk.protocol.records import AskStatistics, ComputedInStub, ForgetStatistics
from brisk.protocol.runtime_paths import runtime_place
from brisk.protocol.stub_process import (
    command_line,
    end_with_server,
    hide_region,
    server_of_stub,
)
from brisk.settings import check_settings, metrics_interval_s, realtime_niceness
from brisk.stub.config.entry import Entry, find_model, read_entry
from brisk.stub.config.parameters import REALTIME
from brisk.stub.local.offered_model import OfferedModel
from brisk.stub.metrics import Publisher
from brisk.stub.runtime_client.client import RuntimeClient
from brisk.stub.runtime_client.runtime_process import NICENESS, start_if_absent
from brisk.telemetry import STATISTICS

if TYPE_CHECKING:
    from brisk.stub.request_handler import RequestHandler

# Numpy is by far the longest import of a stub, which uses it for Triton's tensors and, except for
# hot small models, computes nothing. So less of numpy is imported, and later than Triton's module
# would: in the fork server, and while the model loads.

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def import_request_handler() -> type[RequestHandler]:
    """Import the request handler's module, and numpy with it; return its class."""
    with one_blas_thread(), on_demand():
        from brisk.stub.request_handler import RequestHandler
    return RequestHandler


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Restrict OpenBLAS to one thread if numpy loads it in the ``with`` block, unless the user has
    set a number.

    Otherwise OpenBLAS starts a thread for each further processor, which keeps that processor from
    a loading worker for some 50 ms. A runtime that this process starts later does not inherit the
    setting.
    """
    with ENVIRONMENT:
        if _BLAS_THREADS in os.environ:
            yield
            return
        os.environ[_BLAS_THREADS] = "1"
        try:
            yield
        finally:
            del os.environ[_BLAS_THREADS]


# Lines for Triton's log.


def prepare_log() -> None:
    """Import in advance what the first log line needs (5 ms), while the process is idle."""
    import inspect

    # Triton's logger asks ``inspect`` for its caller, which otherwise looks up the file of every
    # module of the process on the disk: 15 to 24 ms for the first line.
    inspect.modulesbyfile.setdefault(__file__, __name__)


def log(level: str, text: str) -> None:
    """Write to Triton's log; any thread may call. ``level``: ``error``, ``warning``; any other is
    information."""
    prepare_log()
    write = {
        "error": pb_utils.Logger.log_error,
        "warning": pb_utils.Logger.log_warn,
    }.get(level, pb_utils.Logger.log_info)
    write(as_utf8(text))


class ModelInstance:
    """One instance of one model version; Triton calls it from one thread."""

    def __init__(self, arguments: Mapping[str, str]) -> None:
        """Load the model. Raises ``pb_utils.TritonModelException`` with the reason."""
        hide_region()
        end_with_server()
        attend_launchers(command_line(), NICENESS)
        name, version = arguments["model_name"], arguments["model_version"]
        self._label = f"brisk: model '{name}' version {version}"
        importing = threading.Thread(target=import_request_handler, daemon=True)
        try:
            check_settings()
            self._entry = read_entry(arguments, meanwhile=importing.start, keeps=True)
            self._publisher = Publisher(STATISTICS, self._log, metrics_interval_s())
            self._offered = OfferedModel(
                self._entry.model, self._send, self._log, lambda: self._connection.pending
            )
            self._connection = RuntimeClient(
                runtime_place(self._entry.device),
                self._entry.model,
                self._log,
                self._publisher.take,
                self._offered.take,
            )
            if self._entry.parameters.job_class == REALTIME:
                set_threads(realtime_niceness())  # refused: the stub stays as urgent as others
            load_ns = None
            if self._entry.parameters.is_lazy:
                handler = import_request_handler()
                _check_tensors(arguments, self._entry)
            else:
                # imported while the runtime starts or the model is loading
                if importing.ident is None:
                    importing.start()
                self._connection.begin()
                handler = import_request_handler()
                prepare_log()
                self._check(arguments)
                load_ns = self._connection.wait_loaded()
        except BriskError as error:
            if importing.ident is not None:
                importing.join()  # no thread goes on while this process ends
            raise pb_utils.TritonModelException(as_utf8(f"{self._label}: {error}")) from None
        self._handler = handler(self._entry, self._connection, self._offered, self._log)
        self.execute = self._handler.execute
        self._publisher.start(partial(self._connection.send, AskStatistics(takes_news=True)))
        self._tell(self._entry, load_ns)
        start_when_quiet()

    def _check(self, arguments: Mapping[str, str]) -> None:
        """Call ``_check_tensors``, and close the connection before raising its error.

        Otherwise a thread of the connection may write to Triton's log while this process ends,
        which frees memory twice. The worker is told of the leave: this stub has not died.
        """
        try:
            _check_tensors(arguments, self._entry)
        except BaseException:
            self._connection.send(ForgetStatistics())
            self._connection.close()
            raise

    def finalize(self) -> None:
        """Release the session. By Triton's rules all requests have been answered before."""
        self._publisher.close()
        self._connection.send(ForgetStatistics())
        self._handler.close()
        self._connection.close()

    def _send(self, record: ComputedInStub) -> None:
        self._connection.send(record)

    def _log(self, level: str, text: str) -> None:
        log(level, f"{self._label}: {text}")

    def _tell(self, entry: Entry, load_ns: int | None) -> None:
        how = f"ready after {load_ns / 1e6:.0f} ms" if load_ns else "shares a loaded session"
        if load_ns is None:
            how = "is loaded by its first request"
        self._log("info", f"{how} on {entry.device}")
        if not entry.is_first:
            return
        for notice in entry.notices:
            self._log(notice.level, str(notice))
        for line in entry.parameters.ignored():
            self._log("info", line)


def _check_tensors(arguments: Mapping[str, str], entry: Entry) -> None:
    """Raise InvalidConfigurationError if the configuration contradicts the model."""
    # Imported here, since it needs numpy, which is imported while the model loads.
    from brisk.stub.config.agreement import check_tensors

    check_tensors(json.loads(arguments["model_config"]), Path(entry.model.path))


def auto_complete(model_config: Any) -> Any:
    """Complete the entry's configuration from its model. Raises
    ``pb_utils.TritonModelException``."""
    # Imported here, since only incomplete entries need it.
    from brisk.stub.config.completion import complete, default_max_batch_size, is_whole
    from brisk.stub.config.signature import model_signature

    hide_region()
    end_with_server()
    attend_launchers(command_line(), NICENESS)
    config = model_config.as_dict()
    _start_runtime(config)  # now, since Triton waits a second before it starts the model's stub
    if is_whole(config):
        return model_config
    try:
        path = _model_file(config)
        if path is None:
            return model_config
        batch = default_max_batch_size(command_line(server_of_stub()))
        completion = complete(model_signature(path), config, batch)
    except BriskError as error:
        name = config.get("name", "")
        raise pb_utils.TritonModelException(as_utf8(f"brisk: model '{name}': {error}")) from None
    for side, add, tensors in (
        ("input", model_config.add_input, completion.inputs),
        ("output", model_config.add_output, completion.outputs),
    ):
        for tensor in tensors:
            add({field: tensor[field] for field in ("name", "data_type", "dims")})
            if "reshape" in tensor:  # which Triton's method refuses, and its core takes
                (added,) = (each for each in config[side] if each["name"] == tensor["name"])
                added["reshape"] = tensor["reshape"]
    if completion.max_batch_size:
        model_config.set_max_batch_size(completion.max_batch_size)
    if completion.has_dynamic_batching:
        model_config.set_dynamic_batching()
    return model_config


def _start_runtime(config: Mapping[str, Any]) -> None:
    """Start the runtime of the entry's first instance group's device, unless it runs.

    Errors are ignored: the model's stub, which needs the runtime, reports them.
    """
    for group in config.get("instance_group", ())[:1]:
        device = None
        if group.get("kind") == "KIND_CPU":
            device = "cpu"
        elif group.get("kind") == "KIND_GPU" and group.get("gpus"):
            device = f"cuda:{group['gpus'][0]}"
        if device is not None:
            with contextlib.suppress(BriskError, OSError):
                start_if_absent(runtime_place(device))


def _model_file(config: Mapping[str, Any]) -> Path | None:
    """Return the model's file while Triton completes its configuration; None if it is unknown.

    Triton passes no path to ``auto_complete_config``, but the stub's command line names the file
    that a plain Python model would have: ``default_model_filename``, which may lie in a folder of
    the version's, else ``model.py``.
    """
    arguments = command_line()
    if len(arguments) < 2:
        return None
    named = Path(config.get("default_model_filename") or "model.py")
    file = Path(os.fsdecode(arguments[1]))
    if len(file.parts) <= len(named.parts):
        return None
    version_directory = file.parents[len(named.parts) - 1]
    if not version_directory.name.isdigit():
        return None
    return find_model(version_directory.parent, int(version_directory.name), config)
