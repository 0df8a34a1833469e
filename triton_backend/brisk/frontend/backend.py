"""What Triton calls: a model instance, from ``initialize`` to ``finalize``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from brisk.errors import BriskError
from brisk.forking.start import start_fork_server
from brisk.frontend.connection import Connection
from brisk.frontend.entry import Entry, find_model, read_entry
from brisk.frontend.log import log
from brisk.frontend.numpy_import import import_intake
from brisk.frontend.parameters import REALTIME
from brisk.frontend.publisher import Publisher, publishing_interval_s
from brisk.frontend.starting import NICENESS
from brisk.telemetry import STATISTICS
from brisk.wire.orphan import end_with_server
from brisk.wire.place import runtime_place
from brisk.wire.precedence import realtime_niceness, renice
from brisk.wire.stub_process import command_line, server_of_stub


class ModelInstance:
    """One instance of one model version; Triton calls it from one thread."""

    def __init__(self, arguments: Mapping[str, str]) -> None:
        """Load the model; raises ``pb_utils.TritonModelException`` with the reason."""
        end_with_server()
        name, version = arguments["model_name"], arguments["model_version"]
        self._label = f"brisk: model '{name}' version {version}"
        try:
            self._entry = read_entry(arguments)
            self._publisher = Publisher(STATISTICS, self._log, publishing_interval_s())
            self._connection = Connection(
                runtime_place(self._entry.device),
                self._entry.describe(),
                self._log,
                self._publisher.take,
            )
            if self._entry.parameters.job_class == REALTIME:
                renice(realtime_niceness())  # refused: the stub stays as urgent as others
            load_ns = None
            if self._entry.parameters.is_lazy:
                intake = import_intake()
            else:
                self._connection.begin()
                intake = import_intake()  # while the model is loading
                load_ns = self._connection.wait_loaded()
        except BriskError as error:
            raise pb_utils.TritonModelException(f"{self._label}: {error}") from None
        self._intake = intake(self._entry, self._connection, self._log)
        self._publisher.start(self._connection.ask_statistics)
        self._tell(self._entry, load_ns)
        start_fork_server(command_line(), NICENESS)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Take the requests in: see ``Intake.execute``."""
        return self._intake.execute(requests)

    def finalize(self) -> None:
        """Give the session back; requests still in flight have been answered by Triton's rules."""
        self._publisher.close()
        self._connection.forget_statistics()
        self._intake.close()
        self._connection.close()

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
        for names, text in (
            (entry.parameters.ignored_onnxruntime, "of the ONNX Runtime backend have no meaning"),
            (entry.parameters.foreign, "are unknown to Brisk and ignored"),
        ):
            if names:
                self._log("info", f"parameters {', '.join(names)} {text}")


def auto_complete(model_config: Any) -> Any:
    """Fill in what the entry leaves out; raises ``pb_utils.TritonModelException``."""
    # Here, since every load of an entry would pay for what only an incomplete one needs.
    from brisk.frontend.completion import complete
    from brisk.frontend.pipeline_signature import model_signature
    from brisk.frontend.server_options import default_max_batch_size

    end_with_server()
    config = model_config.as_dict()
    try:
        path = _model_file(config)
        if path is None:
            return model_config
        batch = default_max_batch_size(command_line(server_of_stub()))
        completion = complete(model_signature(path), config, batch)
    except BriskError as error:
        name = config.get("name", "")
        raise pb_utils.TritonModelException(f"brisk: model '{name}': {error}") from None
    for entry in completion.inputs:
        model_config.add_input(entry)
    for entry in completion.outputs:
        model_config.add_output(entry)
    if completion.max_batch_size:
        model_config.set_max_batch_size(completion.max_batch_size)
    if completion.has_dynamic_batching:
        model_config.set_dynamic_batching()
    return model_config


def _model_file(config: Mapping[str, Any]) -> Path | None:
    """The model's ONNX file while Triton completes its configuration; None where it is not told.

    Triton passes no path to ``auto_complete_config``, but the stub's command line starts with
    the ``model.py`` that a plain Python model would have in its version directory.
    """
    arguments = command_line()
    if len(arguments) < 2:
        return None
    version_directory = Path(os.fsdecode(arguments[1])).parent
    if not version_directory.name.isdigit():
        return None
    return find_model(version_directory.parent, int(version_directory.name), config)
