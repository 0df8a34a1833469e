"""The check of a model repository without a server, for ``brisk check``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import text_format

from brisk.cli.views.learning import aim_of, unfit_text
from brisk.cli.views.model_files import PLATFORM, SERVED, is_model
from brisk.copies.local import copy_of
from brisk.errors import BriskError, InvalidConfigurationError
from brisk.exits.files.versions import caches_file
from brisk.paths import listed
from brisk.pipelines import is_pipeline, read_pipeline
from brisk.protocol.entry_files import (
    REFUSED,
    entry_problem,
    is_text,
    layout_problem,
    versions_in,
)
from brisk.segments.model.sources import checked_model
from brisk.stub.config.agreement import check_tensors
from brisk.stub.config.entry import Entry, read_entry
from brisk.stub.config.parameters import ONNXRUNTIME_PARAMETERS
from brisk.triton.server_preload import is_plain
from brisk.view.entry_text import (
    SCHEMA,
    as_handed_over,
    entry_text,
    loaded_versions,
    read_config,
)
from brisk.view.plan import A_GPU

PROBLEM, WARNING, INFORMATION = "problem", "warning", "information"


_NO_GPU = (
    "instance_group has KIND_GPU: none is here, and where there is none a load of it is refused"
)


class Remark(NamedTuple):
    """A remark of ``brisk check`` on a repository, an entry or a version."""

    entry: str
    """The entry's name; empty for the whole repository."""
    version: int | None
    """The version; None for all of the entry."""
    severity: str
    """The severity: a problem is refused at load, a warning has no effect or not the one meant."""
    text: str


def check_repository(repository: Path) -> Iterator[Remark]:
    """Yield remarks on a repository; none for an entry that is served as written.

    ``repository``: a repository or one of its entries. Raises InvalidConfigurationError if it is
    no directory.
    """
    if not repository.is_dir():
        raise InvalidConfigurationError(
            f"'{repository}' is no directory; expected a model repository, or one of its entries"
        )
    if is_model(repository):
        one = "one model's directory is looked at; a server is given the folder above it"
        yield Remark("", None, INFORMATION, one)
        yield from _check_entry(repository.absolute())
        return
    if (problem := layout_problem(repository)) is not None:
        yield Remark("", None, PROBLEM, problem)
    entries = sorted(path for path in listed(repository) if os.path.isdir(path))
    for entry in entries:
        yield from _check_entry(entry)


def _check_entry(directory: Path) -> Iterator[Remark]:
    def of_all(severity: str, text: str) -> Remark:
        return Remark(directory.name, None, severity, text)

    try:
        written, config = read_config(directory)
    except InvalidConfigurationError as error:
        yield of_all(PROBLEM, str(error))
        return
    if (unknown := _unknown_field(written)) is not None:
        yield of_all(PROBLEM, f"config.pbtxt: {unknown}")
    if config.name and config.name != directory.name:
        yield of_all(
            PROBLEM, f"config.pbtxt has name '{config.name}'; expected the directory's, or none"
        )
    if not is_plain(directory) and is_text(directory.name):
        yield of_all(
            WARNING,
            "its path has other characters than ASCII letters, digits and /._-+=:,@%: `brisk "
            "serve` serves it where there is a C++ compiler, another server never; by HTTP no "
            "name is found that a URL has to encode",
        )
    if (lacking := entry_problem(directory)) is not None:
        yield of_all(PROBLEM, lacking)
        return
    versions = loaded_versions(config, versions_in(directory))
    served_versions = config.version_policy.specific.versions
    if served_versions and not set(served_versions) & set(versions):
        yield of_all(
            PROBLEM,
            f"version_policy loads versions {list(served_versions)}; there are {list(versions)}",
        )
        return
    platform = "" if config.backend else config.platform
    if near := [each for each in get_close_matches(platform, [PLATFORM]) if each != platform]:
        yield of_all(PROBLEM, f"there is no platform '{platform}'; did you mean '{near[0]}'?")
        return
    if config.backend not in SERVED and (near := get_close_matches(config.backend, SERVED)):
        yield of_all(PROBLEM, f"there is no backend '{config.backend}'; did you mean '{near[0]}'?")
        return
    text, lost = entry_text(directory, SERVED)
    if text is None:
        name = config.backend or platform
        needs = f"; a server without the backend '{name}' refuses it" if name else ""
        other = lost or "another backend serves it"
        yield of_all(INFORMATION, f"it is not for Brisk: {other}{needs}")
        return
    if lost is not None:
        yield of_all(WARNING, f"it relies on Triton's completion: {lost}")
    completed = text_format.Parse(text, SCHEMA.ModelConfig(), allow_unknown_field=True)
    fields = as_handed_over(completed)
    if not config.backend and fields.get("backend") == "brisk":
        yield of_all(
            WARNING,
            'its config.pbtxt should have backend: "brisk": only where `brisk serve` makes a view '
            "it is known from model.remote; elsewhere Triton refuses the entry",
        )
    refused = fields.get("parameters", {}).pop(REFUSED, None)
    if refused is not None:
        yield of_all(PROBLEM, refused["string_value"])
        return
    for version in versions:
        yield from _check_version(directory, version, fields)


def _check_version(directory: Path, version: int, config: dict[str, Any]) -> Iterator[Remark]:
    def of_it(severity: str, text: str) -> Remark:
        return Remark(directory.name, version, severity, text)

    groups = config.get("instance_group", ())
    kind = next((group["kind"] for group in groups if "kind" in group), "KIND_CPU")
    if kind == "KIND_GPU" and not A_GPU.exists():
        yield of_it(WARNING, _NO_GPU)
    try:
        entry = read_entry(
            {
                "model_config": json.dumps(config),
                "model_name": directory.name,
                "model_version": str(version),
                "model_repository": str(directory),
                "model_instance_kind": kind.removeprefix("KIND_"),
            }
        )
        check_tensors(config, Path(entry.model.path))
        copy = copy_of(Path(entry.model.path))
        if copy is not None and not copy.is_whole:
            yield of_it(INFORMATION, "of its model only what says what it is is here, no weights")
        elif remark := _open(entry):
            yield of_it(WARNING, remark)
    except BriskError as error:
        yield of_it(PROBLEM, str(error))
        return
    if copy is None and (unfit := _unlearnable(config, entry)):
        yield of_it(WARNING, f"no early answers are learned: {unfit}")
    for notice in entry.notices:
        yield of_it(WARNING if notice.level == WARNING else INFORMATION, str(notice))
    for name in entry.parameters.foreign:
        near = get_close_matches(name, ONNXRUNTIME_PARAMETERS, n=1, cutoff=0.85)
        if near:
            yield of_it(WARNING, f"there is no parameter '{name}'; did you mean '{near[0]}'?")
    for line in entry.parameters.ignored():
        yield of_it(INFORMATION, line)


def _open(entry: Entry) -> str:
    """Open the model like a load, but without its weights' best form. Return a remark on what is
    unusual about it; empty if nothing is.

    Raises BriskError.
    """
    path = Path(entry.model.path)
    if is_pipeline(path):
        read_pipeline(path)
    elif entry.device == "cpu":
        return checked_model(path, 1, tuning=entry.model.tuning).remark
    return ""


def _unlearnable(config: Mapping[str, Any], entry: Entry) -> str:
    """Return why nothing can be learned from the traffic, as the entry asks; empty if it can, or
    if it is the server alone that asks (``BRISK_ACCURACY``)."""
    file, said = Path(entry.model.path), entry.parameters
    if said.leaves_open or entry.device != "cpu" or is_pipeline(file):
        return ""
    aim = None if caches_file(file).exists() else aim_of(file, config, said)
    return "" if aim is None else unfit_text(file, aim)


def _unknown_field(written: str | None) -> str | None:
    """Return Triton's error text on an unknown field, for a parameter of Brisk's with the line to
    write; None if all fields are known."""
    try:
        text_format.Parse(written or "", SCHEMA.ModelConfig())
    except text_format.ParseError as error:
        meant = re.search(r'has no field named "(brisk_\w+)"', str(error))
        return f"{error}{_as_parameter(meant[1], written or '')}" if meant else str(error)
    return None


def _as_parameter(name: str, written: str) -> str:
    """Return the line of a parameter that was written as a field."""
    value = re.search(rf"""\b{name}\s*:\s*(?:"([^"]*)"|'([^']*)'|([^\s;,}}]*))""", written)
    text = next(filter(None, value.groups()), "") if value else ""
    line = f'parameters {{ key: "{name}" value {{ string_value: "{text}" }} }}'
    return f"; it is a parameter: {line}"
