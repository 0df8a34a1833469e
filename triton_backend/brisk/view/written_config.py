"""Of an entry's ``config.pbtxt``, what it says of class and sessions, as Triton hands it over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brisk.errors import InvalidConfigurationError
from brisk.protocol.entry_files import CONFIG_FILE
from brisk.view.entry_text import last, read_config
from brisk.view.text_format import Message, UnreadableTextError, parse


def written_config(directory: Path) -> dict[str, Any]:
    """Of the entry in ``directory``: ``parameters``, ``optimization`` and ``model_operations``.

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
