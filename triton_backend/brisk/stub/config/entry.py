"""A model entry read from Triton's arguments: its configuration, files and device."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from brisk.errors import InvalidConfigurationError, InvalidModelError
from brisk.paths import find_inside, version_folder
from brisk.protocol.entry_files import (
    CONFIG_FILE,
    MODEL_FILE,
    PIPELINE_FILE,
    REFUSED,
    REMOTE_FILE,
    is_behind_view,
    users_path,
)
from brisk.protocol.records import LoadModel
from brisk.stub.config.field_support import (
    COUNT,
    Notice,
    check_fields,
    is_first_instance,
    keeps_answers,
)
from brisk.stub.config.parameters import (
    REALTIME,
    SMALLER_MODEL,
    Parameters,
    needs_classes,
    parse_parameters,
)
from brisk.stub.config.session_tuning import read_tuning

if TYPE_CHECKING:
    from brisk.stub.config.sequences import SequenceSettings


class Entry(NamedTuple):
    """One version of a model entry on one device."""

    model: LoadModel
    """The record that asks the runtime for the model."""
    device: str
    outputs: tuple[str, ...]
    """The configured output names, in order."""
    ones: Mapping[str, tuple[int, ...]]
    """The shape in which an answer has a value without sizes, by the output's name."""
    bfloat16_inputs: frozenset[str]
    """The names of the BF16 inputs, a type that numpy lacks."""
    parameters: Parameters
    is_first: bool
    """Whether this is the first instance, which logs ``notices`` for all."""
    notices: tuple[Notice, ...]
    """The notices of the entry's fields and parameters without their usual effect."""
    sequences: SequenceSettings | None
    """The settings of the entry's ``sequence_batching``; None if it has none."""
    answers_early: bool
    """Whether requests may be answered early."""


def read_entry(
    arguments: Mapping[str, str],
    meanwhile: Callable[[], None] = lambda: None,
    *,
    keeps: bool = False,
) -> Entry:
    """Return the entry that ``initialize``'s arguments describe. ``meanwhile``, ``keeps``: see
    ``find_model``.

    Raises InvalidConfigurationError or InvalidModelError that name the problem.
    """
    config: dict[str, Any] = json.loads(arguments["model_config"])
    version = int(arguments["model_version"])
    device = _device(arguments)
    notices = check_fields(config, device)
    directory = users_path(Path(arguments["model_repository"]))
    if COUNT in notices and not _says_instances(directory):
        notices = tuple(notice for notice in notices if notice != COUNT)
    waits = keeps and device != "cpu"  # a GPU is given all weights at once
    model_path = find_model(directory, version, config, meanwhile, keeps=keeps, waits=waits)
    _check_completion(config)
    sequences = None
    if "sequence_batching" in config:
        # Imported here, since it needs numpy, which every other load imports later.
        from brisk.stub.config.sequences import read_sequences

        sequences = read_sequences(config, directory, model_path)
    said = config.get("parameters", {})
    try:
        tuning = read_tuning(config, directory, model_path, is_on_gpu=device != "cpu")
    except InvalidConfigurationError as error:
        raise InvalidConfigurationError(_with_own(str(error), said)) from None
    parameters = parse_parameters(said, tuning.taken)
    answers_early = not keeps_answers(config)
    max_batch_size = int(config.get("max_batch_size", 0))
    joins = "dynamic_batching" in config or sequences is not None
    return Entry(
        model=LoadModel(
            name=arguments["model_name"],
            version=version,
            path=str(model_path),
            max_batch_size=max_batch_size,
            batching=joins and max_batch_size > 1,
            max_queue_size=parameters.max_queue_size,
            job_class=parameters.job_class,
            states=sequences.states if sequences else (),
            max_sequences=sequences.max_sequences if sequences else 0,
            sequence_idle_ns=sequences.idle_ns if sequences else 0,
            tuning=tuning.tuning,
            max_run_ns=parameters.max_run_ns,
            accuracy_ppm=parameters.accuracy_ppm if answers_early else 0,
            tolerance=parameters.tolerance,
            smaller=_smaller_model(model_path, parameters),
            needs_classes=needs_classes(parameters, config),
            takes_offers=parameters.max_class != REALTIME and sequences is None,
        ),
        device=device,
        outputs=tuple(output["name"] for output in config.get("output", ())),
        ones={output["name"]: _one(output) for output in config.get("output", ())},
        bfloat16_inputs=frozenset(
            tensor["name"]
            for tensor in config.get("input", ())
            if tensor.get("data_type") == "TYPE_BF16"
        ),
        parameters=parameters,
        is_first=is_first_instance(config, arguments.get("model_instance_name", "")),
        notices=(*notices, *tuning.notices),
        sequences=sequences,
        answers_early=answers_early,
    )


def _with_own(mistakes: str, parameters: Mapping[str, Any]) -> str:
    """Return the mistakes in settings of ONNX Runtime, followed by those in Brisk's parameters."""
    try:
        parse_parameters(parameters)
    except InvalidConfigurationError as error:
        return mistakes if str(error) in mistakes else f"{mistakes}; {error}"
    return mistakes


def _says_instances(directory: Path) -> bool:
    """Whether the entry's own file sets ``instance_group``: without it, Triton gives an ONNX model
    two instances."""
    try:
        return b"instance_group" in (directory / CONFIG_FILE).read_bytes()
    except OSError:
        return False


def find_model(
    directory: Path,
    version: int,
    config: Mapping[str, Any],
    meanwhile: Callable[[], None] = lambda: None,
    *,
    keeps: bool = False,
    waits: bool = False,
) -> Path:
    """Return the model file of a version, like ``find_file``.

    For ``model.remote``, which names a model elsewhere, it is the file in the model's local copy,
    which may still be arriving; ``meanwhile`` is called if the bytes that describe the model have
    to be waited for. ``keeps``: the copy is not removed while this process lives. ``waits``: the
    copy is to be whole; a stub waits for that, not a worker, whose other models would wait with
    it. Raises InvalidModelError like ``find_file``, and if there is no file; UnavailableError if
    nothing can be fetched.
    """
    file = find_file(directory, version, config)
    if file is None:
        place = (directory / str(version)).absolute() / (_named_file(config) or MODEL_FILE)
        expected = place / MODEL_FILE if place.is_dir() else place
        raise InvalidModelError(
            f"there is no model file {expected}, nor a {PIPELINE_FILE} or {REMOTE_FILE}"
        )
    if file.name != REMOTE_FILE:
        return file
    from brisk.copies.connection import resolve

    model = resolve(file, meanwhile, keeps=keeps)
    if waits:
        from brisk.copies.courier import await_whole
        from brisk.copies.local import copy_of

        copy = copy_of(model)
        if copy is not None:
            await_whole(copy)
    return model


def find_file(directory: Path, version: int, config: Mapping[str, Any]) -> Path | None:
    """Return the file that says what a version is, or None: ``default_model_filename``, else
    ``model.onnx``, a pipeline's file or ``model.remote``.

    If the name is that of a directory, the file is ``model.onnx`` in it, with its external data
    alongside. The path is absolute, since the runtime, which reads the file, works in another
    directory. Raises InvalidModelError if the file lies outside the version's directory, or
    several are possible.
    """
    named = _named_file(config)
    folder = (directory / str(version)).absolute()
    name = named or MODEL_FILE
    what = "model file" if name == MODEL_FILE else "default_model_filename"  # Triton's own, too
    file = find_inside(folder, name, what)
    if file is not None and file.is_dir():
        file = find_inside(folder, f"{name}/{MODEL_FILE}", what)
    others = () if named else (PIPELINE_FILE, REMOTE_FILE)
    present = [file, *(find_inside(folder, other, "model file") for other in others)]
    chosen = [each for each in present if each is not None]
    if len(chosen) > 1:
        raise InvalidModelError(
            f"there are both {chosen[0]} and {chosen[1]}; say which in default_model_filename"
        )
    return chosen[0] if chosen and not chosen[0].is_dir() else None


def _named_file(config: Mapping[str, Any]) -> str:
    """Return the entry's ``default_model_filename``; empty if it has none, or names a stub's."""
    named: str = config.get("default_model_filename", "")
    return "" if named.endswith(".py") else named


def _smaller_model(model_path: Path, parameters: Parameters) -> str:
    """Return the name of the version's smaller model; empty if the entry has none.

    Raises InvalidModelError if there is no such file, or it lies outside the version's directory.
    """
    name = parameters.smaller_model
    if name:
        folder = version_folder(model_path)
        file = find_inside(folder, name, SMALLER_MODEL)
        if file is None or not file.is_file():
            raise InvalidModelError(f"{SMALLER_MODEL}: there is no file {folder / name}")
    return name


def _check_completion(config: Mapping[str, Any]) -> None:
    """Raise InvalidConfigurationError if Brisk completed the entry in a view, and refused it there
    in place of Triton's completion.
    """
    if is_behind_view() and (refused := config.get("parameters", {}).get(REFUSED)):
        raise InvalidConfigurationError(refused.get("string_value", ""))


def _one(output: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape in which an output has a single value: all sizes 1, as many as the entry
    gives, since Triton has no tensors without sizes."""
    reshape = output.get("reshape")
    dims = output.get("dims", ()) if reshape is None else reshape.get("shape", ())
    return (1,) * len(dims)


def _device(arguments: Mapping[str, str]) -> str:
    kind = arguments.get("model_instance_kind", "CPU")
    if kind == "GPU":
        return f"cuda:{int(arguments.get('model_instance_device_id', '0'))}"
    if kind in ("CPU", "AUTO"):
        return "cpu"
    raise InvalidConfigurationError(
        f"instance group kind KIND_{kind} is not served; expected KIND_CPU or KIND_GPU"
    )
