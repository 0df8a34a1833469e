"""An entry's settings of ONNX Runtime's sessions, read like Triton's ONNX Runtime backend does.

Names, values and their meaning are those of that backend (release 24.10): its ``ModelState`` and
``LoadModel``, in ``src/onnxruntime.cc``. Values that it refuses are refused. A value that it
silently replaces (an unknown graph level) is replaced in the same way, with a notice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from brisk.errors import InvalidConfigurationError, InvalidModelError
from brisk.paths import find_inside
from brisk.settings import CUSTOM_OPERATORS, loads_custom_operators
from brisk.stub.config.cuda_options import read_cuda_options
from brisk.stub.config.field_support import Notice
from brisk.stub.config.parameters import (
    ENTRY_PARAMETERS,
    Parser,
    choice,
    matching,
    parse_texts,
    read_texts,
)
from brisk.tuning import ALL, BASIC, EXTENDED, NONE, SESSION_KEYS, SessionTuning, Setting

_LEVELS = {-1: BASIC, 0: ALL, 1: EXTENDED, 2: NONE}
"""The optimization by ``optimization.graph.level``, which is 0 if the entry does not set it."""

_PREFIXES = ("session.", "ep.", "optimization.", "mlas.")
_LIBRARIES = "model_operations.op_library_filename"

_word = choice({"0": False, "1": True, "false": False, "true": True}, "0 or 1, or false or true")


def _flag(text: str) -> bool:
    return bool(_word(text.lower()))


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError("must be a whole number, 0 (as many as there are) or more")
    return int(text)


_EXECUTION_MODE, _SHRINKAGE = "execution_mode", "memory.enable_memory_arena_shrinkage"

_FIELDS: Mapping[str, tuple[str, Parser]] = {
    "intra_op_thread_count": ("intra_op_threads", _count),
    "inter_op_thread_count": ("inter_op_threads", _count),
    _EXECUTION_MODE: (
        "is_parallel",
        choice({"0": False, "1": True}, "0 (sequential) or 1 (parallel)"),
    ),
    "enable_mem_arena": ("uses_arena", _flag),
    "enable_mem_pattern": ("uses_memory_pattern", _flag),
    _SHRINKAGE: (
        "shrinks_arena",
        choice({"cpu:0": True}, "cpu:0, the arena of this device"),
    ),
    "brisk_share": ("shares_structures", ENTRY_PARAMETERS["brisk_share"]),
}
"""The field of SessionTuning and the parser, by the parameter's name."""

_PARSERS: Mapping[str, Parser] = {
    **{name: parser for name, (_, parser) in _FIELDS.items()},
    **{key: matching(*form) for key, form in SESSION_KEYS.items()},
    "share_session_between_instances": _flag,  # all do, whatever it is
}
TAKEN = frozenset(_PARSERS) - ENTRY_PARAMETERS.keys()
"""The names of ONNX Runtime's parameters that are read for a model on a CPU."""

_ARENAS = matching(
    re.compile("(cpu|gpu):[0-9]+(;(cpu|gpu):[0-9]+)*"), "arenas such as gpu:0, with ';' between"
)


class ReadTuning(NamedTuple):
    """An entry's settings for ONNX Runtime, and notices about them."""

    tuning: SessionTuning
    notices: tuple[Notice, ...]
    """The notices of settings that are taken otherwise than they may have been meant."""
    taken: frozenset[str]
    """The names of the entry's parameters that were read."""


def read_tuning(
    config: Mapping[str, Any],
    directory: Path,
    model_path: Path,
    environment: Mapping[str, str] = os.environ,
    *,
    is_on_gpu: bool = False,
) -> ReadTuning:
    """Read the session settings of the entry in ``directory``.

    ``environment``: the server's. Raises InvalidConfigurationError with every wrong value, by the
    parameter's name, and InvalidModelError if a library of custom operators is missing or not
    allowed.
    """
    texts = read_texts(config.get("parameters") or {})
    cuda, cuda_notices, taken = read_cuda_options(config) if is_on_gpu else ((), (), frozenset())
    parsers = {**_PARSERS, _SHRINKAGE: _ARENAS} if is_on_gpu else _PARSERS
    values = parse_texts(texts, parsers)
    if is_on_gpu:
        cuda_notices = (*cuda_notices, *_without_effect(values))
    notices = [
        _not_taken(name) for name in texts if name.startswith(_PREFIXES) and name not in TAKEN
    ]
    optimization = config.get("optimization") or {}
    level = int((optimization.get("graph") or {}).get("level", 0))
    if level not in _LEVELS:
        notices.append(_unknown_level(level))
    _check_accelerators(optimization)
    tuning = SessionTuning(
        optimisation=_LEVELS.get(level, ALL),
        settings=tuple(Setting(key, values[key]) for key in texts if key in SESSION_KEYS),
        cuda=cuda,
        operator_libraries=_libraries(config, directory, model_path, environment),
        **{field: values[name] for name, (field, _) in _FIELDS.items() if name in values},
    )
    tuning.check()
    return ReadTuning(tuning, (*notices, *cuda_notices), TAKEN | taken)


def _without_effect(values: dict[str, Any]) -> Iterator[Notice]:
    """Remove the settings that have no effect on a GPU; yield a notice for each."""
    if values.pop(_SHRINKAGE, None):
        text = "a captured run keeps its memory, in which it is launched again"
        yield Notice("info", f"parameters.{_SHRINKAGE}", text)
    if values.pop(_EXECUTION_MODE, None):
        text = "on a GPU the nodes of a run are issued one after another, to one stream"
        yield Notice("info", f"parameters.{_EXECUTION_MODE}", text)


def _not_taken(name: str) -> Notice:
    import difflib

    near = difflib.get_close_matches(name, SESSION_KEYS, n=1, cutoff=0.8)
    guess = f"; did you mean '{near[0]}'?" if near else ""
    return Notice(
        "warning",
        f"parameters.{name}",
        f"it is no setting of ONNX Runtime's sessions that an entry may make{guess}",
    )


def _unknown_level(level: int) -> Notice:
    return Notice(
        "warning",
        "optimization.graph.level",
        "expected -1 (basic optimisations), 1 (extended ones), 2 (none) or 0 (all)",
        f"{level} is taken for 0, as by Triton's ONNX Runtime backend",
    )


def _check_accelerators(optimization: Mapping[str, Any]) -> None:
    accelerators = optimization.get("execution_accelerators") or {}
    for each in accelerators.get("cpu_execution_accelerator") or ():
        name = each.get("name", "")
        if name != "openvino":
            raise InvalidConfigurationError(
                "optimization.execution_accelerators.cpu_execution_accelerator: unknown "
                f"accelerator '{name:.60}'; expected 'openvino', or none"
            )


def _libraries(
    config: Mapping[str, Any], directory: Path, model_path: Path, environment: Mapping[str, str]
) -> tuple[str, ...]:
    names = (config.get("model_operations") or {}).get("op_library_filename") or ()
    if names and not loads_custom_operators(environment):
        named = ", ".join(f"'{name!s:.120}'" for name in names[:5])
        raise InvalidModelError(
            f"{_LIBRARIES} names {named}, and {CUSTOM_OPERATORS}=0 of this server allows no "
            "library of custom operators: one runs code of whoever writes to the repository; "
            f"expected {CUSTOM_OPERATORS}=1, or an entry without"
        )
    return tuple(_library(str(name), directory.absolute(), model_path.parent) for name in names)


def _library(name: str, entry: Path, beside: Path) -> str:
    """Return the absolute path of a library that the entry names.

    A relative name is searched in the model's folder, then the version's, then the entry's; for a
    model that lies elsewhere, in the entry's alone. An absolute path must be inside the entry's
    folder. Raises InvalidModelError.
    """
    if os.path.isabs(name):
        inside = os.path.relpath(os.path.realpath(name), os.path.realpath(entry))
        if inside.startswith("../"):
            raise InvalidModelError(
                f"{_LIBRARIES} '{name:.120}' lies outside of the entry's folder {entry}; expected "
                "a library in that folder: copy it there"
            )
        library = find_inside(entry, inside, _LIBRARIES)
        folders = [entry]
    else:
        folders = [entry]
        if beside.is_relative_to(entry):
            version = entry / beside.relative_to(entry).parts[0]
            folders = list(dict.fromkeys((beside, version, entry)))
        candidates = (find_inside(folder, name, _LIBRARIES) for folder in folders)
        library = next((each for each in candidates if each is not None), None)
    if library is None or library.is_dir():
        where = ", ".join(map(str, folders))
        raise InvalidModelError(
            f"there is no library '{name:.120}' ({_LIBRARIES}); expected a file in {where}"
        )
    return str(library)
