"""``config.pbtxt`` of an entry: completed, the user's text before what it leaves out, and read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from brisk.errors import BriskError, InvalidConfigurationError
from brisk.protocol.entry_files import CONFIG_FILE, MODEL_FILE, REFUSED
from brisk.stub.config.completion import ConfigCompletion, complete
from brisk.stub.config.entry import find_model
from brisk.stub.config.signature import model_signature
from brisk.view.text_format import Message, Parsed, UnreadableTextError, parse, quoted

LONGEST_CONFIG_BYTES = 16 << 20

_ONNX_PLATFORM = "onnxruntime_onnx"


class EntryText(NamedTuple):
    """What Triton is to read of an entry.

    ``text``: None where it reads the entry as it is. ``lost``: what Triton's own completion would
    do for the entry beyond that; None where it would do nothing.
    """

    text: str | None
    lost: str | None


def entry_text(directory: Path, served: Sequence[str]) -> EntryText:
    """Of the entry in ``directory``; ``served``: the backends that are Brisk.

    An entry that Triton refuses with and without its completion stays as it is. Where Brisk's
    own completion fails, the text has the reason for the stub to give (REFUSED). Raises OSError
    only where the directory goes while it is read.
    """
    try:
        config = read_config(directory / CONFIG_FILE)
    except OSError:  # no file that may be read: Triton says so
        return EntryText(None, None)
    try:
        parsed = parse(config or "")
    except UnreadableTextError:
        return EntryText(None, None)
    versions = _versions(directory)
    files = {path.name for version in versions for path in _listed(directory / str(version))}
    backend = _backend(parsed.message, files)
    if backend not in served:
        return EntryText(None, _lost_of_others(directory, config, parsed.message, backend, files))
    if _has_library(directory, files):
        return EntryText(None, "it has a backend library of its own")
    if not versions:
        return EntryText(config or "", None)
    loaded = _loaded(parsed.message, versions)
    texts = {version: _completed(directory, version, config or "", parsed) for version in loaded}
    newest = texts[loaded[-1]]
    if any(text != newest for text in texts.values()):
        return EntryText(newest, "its versions differ in what they take and give")
    return EntryText(newest, None)


def is_unwritten(directory: Path) -> bool:
    """Whether no configuration tells yet what the entry is: somebody may just be writing it."""
    try:
        return not (directory / CONFIG_FILE).lstat().st_size
    except FileNotFoundError:
        return True


def read_config(file: Path) -> str | None:
    """The text of a configuration; None where there is none.

    Raises OSError where it cannot be read as a file.
    """
    try:
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


def _listed(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _versions(directory: Path) -> list[int]:
    return sorted(
        int(path.name)
        for path in _listed(directory)
        if path.name.isascii()
        and path.name.isdecimal()
        and path.is_dir()
        and str(int(path.name)) == path.name
    )


def last(message: Message, field: str) -> Any:
    """The value that counts of a field that has one; None where it is not given."""
    return message[field][-1] if message.get(field) else None


def _text(message: Message, field: str) -> str:
    value = last(message, field)
    return value if isinstance(value, str) else ""


def _backend(message: Message, files: set[str]) -> str:
    """As Triton fills in what an entry leaves out; empty where nothing says it."""
    if backend := _text(message, "backend"):
        return backend
    platform = _text(message, "platform")
    if platform == _ONNX_PLATFORM or (
        not platform
        and (MODEL_FILE in files or _text(message, "default_model_filename") == MODEL_FILE)
    ):
        return "onnxruntime"
    return platform


def _lost_of_others(
    directory: Path, config: str | None, message: Message, backend: str, files: set[str]
) -> str | None:
    """Whether another backend's entry may rely on Triton's completion: on the safe side."""
    if config is None:
        return "it has no config.pbtxt" if files else None
    if backend == "ensemble":
        return None
    if not (message.get("input") and message.get("output")):
        return f"its config.pbtxt lacks inputs or outputs, which backend '{backend}' may add"
    if backend == "python":
        if _asks_python(directory):
            return "its Python model has an auto_complete_config"
        return None
    has_batches = isinstance(size := last(message, "max_batch_size"), int) and size > 0
    if has_batches and ("dynamic_batching" in message or "sequence_batching" in message):
        return None
    return f"backend '{backend}' may add to its config.pbtxt"


def _asks_python(directory: Path) -> bool:
    for version in _versions(directory):
        for file in _listed(directory / str(version)):
            try:
                if file.suffix == ".py" and b"auto_complete_config" in file.read_bytes():
                    return True
            except OSError:
                return True
            if file.suffix in (".pyc", ".so"):
                return True
    return False


def _has_library(directory: Path, files: set[str]) -> bool:
    """Triton takes a backend's library from the entry, if its path says that it lies there."""
    names = files | {path.name for path in _listed(directory)}
    return any(name.startswith("libtriton_") and name.endswith(".so") for name in names)


def _loaded(message: Message, versions: Sequence[int]) -> Sequence[int]:
    """The versions that ``version_policy`` loads; the newest where that is none."""
    policy = last(message, "version_policy")
    if isinstance(policy, dict):
        if "all" in policy:
            return versions
        if isinstance(specific := last(policy, "specific"), dict):
            wanted = specific.get("versions", [])
            return [version for version in versions if version in wanted] or versions[-1:]
        if isinstance(latest := last(policy, "latest"), dict):
            count = last(latest, "num_versions")
            return versions[-count:] if isinstance(count, int) and count > 0 else versions[-1:]
    return versions[-1:]


def _completed(directory: Path, version: int, config: str, parsed: Parsed) -> str:
    fields = _fields(parsed.message)
    try:
        signature = model_signature(find_model(directory, version, fields))
        return _with(config, parsed, complete(signature, fields))
    except BriskError as error:
        reason = f"{{ string_value: {quoted(str(error))} }}"
        return config + _lines([f"parameters {{ key: {quoted(REFUSED)} value {reason} }}"])


def _fields(message: Message) -> dict[str, Any]:
    """What ``complete`` reads, in the form that Triton hands a configuration over."""
    fields: dict[str, Any] = {
        side: [{"name": _text(tensor, "name")} for tensor in message.get(side, ()) if _is(tensor)]
        for side in ("input", "output")
    }
    size = last(message, "max_batch_size")
    fields["max_batch_size"] = size if isinstance(size, int) else 0
    fields["default_model_filename"] = _text(message, "default_model_filename")
    if "dynamic_batching" in message:
        fields["dynamic_batching"] = {}
    batching = last(message, "sequence_batching")
    if _is(batching):
        fields["sequence_batching"] = {
            "control_input": [
                {"name": _text(control, "name")}
                for control in batching.get("control_input", ())
                if _is(control)
            ],
            "state": [
                {
                    "input_name": _text(state, "input_name"),
                    "output_name": _text(state, "output_name"),
                    "dims": state.get("dims", []),
                }
                for state in batching.get("state", ())
                if _is(state)
            ],
        }
    return fields


def _is(value: object) -> bool:
    return isinstance(value, dict)


def _with(config: str, parsed: Parsed, completion: ConfigCompletion) -> str:
    """The user's lines keep their numbers, so that Triton's words about them stay true."""
    added = []
    size = completion.max_batch_size
    if "max_batch_size" not in parsed.message:
        added += [f"max_batch_size: {size}"] if size else []
    elif last(parsed.message, "max_batch_size") != size and "max_batch_size" in parsed.places:
        start, end = parsed.places["max_batch_size"]
        config = f"{config[:start]}{size}{config[end:]}"
    if completion.has_dynamic_batching:
        added.append("dynamic_batching { }")
    for side, tensors in (("input", completion.inputs), ("output", completion.outputs)):
        added += [f"{side} {{ {_tensor(tensor)} }}" for tensor in tensors]
    return config + _lines(added)


def _tensor(tensor: Mapping[str, Any]) -> str:
    dims = ", ".join(map(str, tensor["dims"]))
    return f"name: {quoted(tensor['name'])} data_type: {tensor['data_type']} dims: [ {dims} ]"


def _lines(added: Sequence[str]) -> str:
    return "\n" + "".join(f"{line}\n" for line in added) if added else ""


def entries_of(repository: Path, served: Sequence[str]) -> Iterator[Message]:
    """What the entries that look like Brisk's own say of themselves. Nothing of theirs but the
    names of their files and their configurations is read."""
    for directory in _listed(repository):
        try:
            message = parse(read_config(directory / CONFIG_FILE) or "").message
        except (OSError, UnreadableTextError):
            continue
        versions = _versions(directory)
        files = {path.name for path in _listed(directory / str(versions[-1]))} if versions else ()
        if files and _backend(message, set(files)) in served:
            yield message


def written_config(directory: Path) -> dict[str, Any]:
    """What the entry in ``directory`` says of class and sessions, as Triton hands it over:
    ``parameters``, ``optimization`` and ``model_operations``.

    Empty where there is no ``config.pbtxt``. Raises InvalidConfigurationError where it cannot be
    read.
    """
    try:
        message = parse(read_config(directory / CONFIG_FILE) or "").message
    except (OSError, UnreadableTextError) as error:
        raise InvalidConfigurationError(f"the config.pbtxt of {directory}: {error}") from error
    optimization = _message(message, "optimization")
    accelerators = _message(optimization, "execution_accelerators")
    return {
        "parameters": {
            str(last(each, "key")): {
                "string_value": str(last(_message(each, "value"), "string_value") or "")
            }
            for each in message.get("parameters", ())
            if isinstance(each, dict)
        },
        "optimization": {
            "graph": {"level": last(_message(optimization, "graph"), "level") or 0},
            "execution_accelerators": {
                "cpu_execution_accelerator": [
                    {"name": str(last(each, "name") or "")}
                    for each in accelerators.get("cpu_execution_accelerator", ())
                    if isinstance(each, dict)
                ]
            },
        },
        "model_operations": {
            "op_library_filename": _message(message, "model_operations").get(
                "op_library_filename", []
            )
        },
    }


def _message(message: Message, field: str) -> Message:
    value = last(message, field)
    return value if isinstance(value, dict) else {}
