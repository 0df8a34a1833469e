"""Reading the ``config.pbtxt`` of an entry, and completing it after the user's own text."""

from __future__ import annotations

import importlib.util
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import json_format, text_format

from brisk.errors import BriskError, InvalidConfigurationError, UnavailableError
from brisk.paths import listed
from brisk.protocol.entry_files import (
    CONFIG_FILE,
    MODEL_FILE,
    REFUSED,
    REMOTE_FILE,
    versions_in,
)
from brisk.protocol.signature import NetworkSignature
from brisk.stub.config.completion import DEFAULT_MAX_BATCH_SIZE, complete, is_whole
from brisk.stub.config.entry import find_model
from brisk.stub.config.signature import model_signature

LONGEST_CONFIG_BYTES = 16 << 20

_ONNX_PLATFORM = "onnxruntime_onnx"
_ONNX_BACKEND = "onnxruntime"
_BRISK = "brisk"


def _load_schema() -> Any:
    """Load tritonclient's ``model_config_pb2`` without its package, which imports gRPC."""
    package = importlib.util.find_spec("tritonclient.grpc")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).with_name("model_config_pb2.py")
    specification = importlib.util.spec_from_file_location("model_config_pb2", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


SCHEMA = _load_schema()
"""The schema of configurations: ``SCHEMA.ModelConfig`` and its parts."""


class EntryText(NamedTuple):
    """The configuration of an entry to show to Triton."""

    text: str | None
    """The completed text of ``config.pbtxt``; None if Triton reads the entry as it is."""
    lost: str | None
    """What Triton's own completion would do for the entry in addition, or the reason why it may be
    needed; None if it is not."""


AS_IT_IS = EntryText(None, None)


def entry_text(
    directory: Path, served: Sequence[str], batch: int = DEFAULT_MAX_BATCH_SIZE
) -> EntryText:
    """Return the completed text of the entry in ``directory``. ``served``: Brisk's backend names.
    ``batch``: the ``max_batch_size`` of a model that can be batched, where the entry has none.

    An entry that Triton refuses with and without its completion stays as it is. If Brisk's own
    completion fails, the text has the reason, which the stub reports (REFUSED).
    """
    try:
        written, config = read_config(directory)
    except InvalidConfigurationError:  # Triton reports it
        return AS_IT_IS
    versions = versions_in(directory)
    files = {path.name for version in versions for path in listed(directory / str(version))}
    backend = _backend(config, files)
    if backend not in served:
        if written is None:
            return EntryText(None, "it has no config.pbtxt" if files else None)
        return EntryText(None, _lost_of_others(directory, config, backend))
    if _has_library(directory, files):
        return EntryText(None, "it has a backend library of its own")
    text = written or ""
    if backend == _BRISK and not config.backend:  # which Triton does not see of its files
        text = f'{text}\nbackend: "{_BRISK}"'.lstrip()
    if not versions:
        return EntryText(text, None)
    added: list[str] = []
    for version in loaded_versions(config, versions):
        try:
            added.append(_completion(directory, version, config, backend, batch))
        except UnavailableError as error:
            return EntryText(f"{text}\n{_refused(error)}", None)  # others may take as long
    differ = "its versions differ in what they take and give"
    return EntryText(
        f"{text}\n{added[-1]}" if added[-1] else text,
        differ if any(other != added[-1] for other in added) else None,
    )


def read_config(directory: Path) -> tuple[str | None, Any]:
    """Return the text of an entry's ``config.pbtxt`` (None if there is none) and its ModelConfig.

    Fields that the installed tritonclient does not know are left out. Raises
    InvalidConfigurationError if it is no file, or its text is invalid.
    """
    try:
        written = _config_text(directory)
        config = SCHEMA.ModelConfig()
        text_format.Parse(written or "", config, allow_unknown_field=True)
        return written, config
    except (OSError, text_format.ParseError, ValueError, RecursionError) as error:
        raise InvalidConfigurationError(f"the config.pbtxt of {directory}: {error}") from error


def _config_text(directory: Path) -> str | None:
    """Return the text of ``config.pbtxt``; None if there is none. Raises OSError if it is no
    readable file."""
    file = directory / CONFIG_FILE
    try:
        # A FIFO would be waited for without O_NONBLOCK.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        if file.is_symlink():
            raise
        return None
    with open(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > LONGEST_CONFIG_BYTES:
            raise OSError(f"{file} is no file of at most {LONGEST_CONFIG_BYTES} bytes")
        return opened.read().decode("utf-8", "surrogateescape")


def _backend(config: Any, files: set[str]) -> str:
    """Return the entry's backend, filled in like Triton does; empty if it is unknown."""
    if config.backend:
        return config.backend
    if config.platform == _ONNX_PLATFORM or (
        not config.platform and MODEL_FILE in (*files, config.default_model_filename)
    ):
        return _ONNX_BACKEND
    if not config.platform and REMOTE_FILE in files:
        return _BRISK
    return config.platform


def _lost_of_others(directory: Path, config: Any, backend: str) -> str | None:
    """Return why another backend's entry relies on Triton's completion, or may rely on it; None if
    it does not."""
    if backend == "ensemble":
        return None
    if not (config.input and config.output):
        return f"its config.pbtxt lacks inputs or outputs, which backend '{backend}' may add"
    if backend == "python":
        if _asks_python(directory):
            return "its Python model has an auto_complete_config"
        return None
    if config.max_batch_size > 0 and config.WhichOneof("scheduling_choice") in (
        "dynamic_batching",
        "sequence_batching",
    ):
        return None
    return f"backend '{backend}' may add to its config.pbtxt"


def _asks_python(directory: Path) -> bool:
    for version in versions_in(directory):
        for file in listed(directory / str(version)):
            try:
                if file.suffix == ".py" and b"auto_complete_config" in file.read_bytes():
                    return True
            except OSError:
                return True
            if file.suffix in (".pyc", ".so"):
                return True
    return False


def _has_library(directory: Path, files: set[str]) -> bool:
    """Whether Triton would load a backend library from the entry, since a file there has such a
    name."""
    names = files | {path.name for path in listed(directory)}
    return any(name.startswith("libtriton_") and name.endswith(".so") for name in names)


def loaded_versions(config: Any, versions: Sequence[int]) -> Sequence[int]:
    """Return which of an entry's versions its ``version_policy`` loads; the newest if none."""
    policy = config.version_policy
    match policy.WhichOneof("policy_choice"):
        case "all":
            return versions
        case "specific":
            specific = policy.specific.versions
            return [version for version in versions if version in specific] or versions[-1:]
        case _:
            return versions[-(policy.latest.num_versions or 1) :]


def _completion(directory: Path, version: int, config: Any, backend: str, batch: int) -> str:
    """Return the lines that the configuration lacks, from its model.

    An entry of the ONNX Runtime backend without instances gets one instead of Triton's two. The
    lines come after the user's, so that Triton's messages name the right lines. A user's
    ``max_batch_size`` of 0 may precede the completed one: proto3 takes it for unset. Raises
    UnavailableError if the model, which lies elsewhere, cannot be reached.
    """
    fields = as_handed_over(config)
    try:
        added = SCHEMA.ModelConfig()
        if not is_whole(fields):
            signature = model_signature(find_model(directory, version, fields))
            added = completed_fields(signature, fields, batch)
        if backend == _ONNX_BACKEND and not config.instance_group:
            added.instance_group.add(name=directory.name, count=1)
    except BriskError as error:
        if isinstance(error, UnavailableError):
            raise
        return _refused(error)
    return str(text_format.MessageToString(added))


def _refused(error: Exception) -> str:
    """Return the line by which a stub refuses the entry."""
    added = SCHEMA.ModelConfig()
    added.parameters[REFUSED].string_value = (
        str(error).encode("utf-8", "backslashreplace").decode()
    )
    return str(text_format.MessageToString(added))


def completed_fields(
    signature: NetworkSignature,
    fields: Mapping[str, Any],
    default_max_batch_size: int = DEFAULT_MAX_BATCH_SIZE,
) -> Any:
    """Return a ModelConfig with only the fields that ``complete`` adds to a configuration."""
    added = SCHEMA.ModelConfig()
    completion = complete(signature, fields, default_max_batch_size)
    if completion.max_batch_size != int(fields.get("max_batch_size", 0)):
        added.max_batch_size = completion.max_batch_size
    if completion.has_dynamic_batching:
        added.dynamic_batching.SetInParent()
    added.input.extend(SCHEMA.ModelInput(**tensor) for tensor in completion.inputs)
    added.output.extend(SCHEMA.ModelOutput(**tensor) for tensor in completion.outputs)
    return added


def as_handed_over(config: Any) -> dict[str, Any]:
    """Convert a ModelConfig to the form in which Triton passes it to a stub."""
    return json_format.MessageToDict(config, preserving_proto_field_name=True)


def entries_of(repository: Path, served: Sequence[str]) -> Iterator[Any]:
    """Yield the configurations of the entries that look like Brisk's own.

    Only their configurations and the names of their files are read.
    """
    for directory in listed(repository):
        try:
            _, config = read_config(directory)
        except InvalidConfigurationError:
            continue
        versions = versions_in(directory)
        files = {path.name for path in listed(directory / str(versions[-1]))} if versions else ()
        if files and _backend(config, set(files)) in served:
            yield config


def written_config(directory: Path) -> dict[str, Any]:
    """Return the configuration in ``directory`` in the form in which Triton passes it to a stub.

    Empty if there is no ``config.pbtxt``. Raises InvalidConfigurationError if it cannot be read.
    """
    return as_handed_over(read_config(directory)[1])
