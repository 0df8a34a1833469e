"""What Triton's command line tells backends, and hands to none that is written in Python.

``--backend-config=<name>,<setting>=<value>`` and, for all backends, ``--backend-config=
<setting>=<value>``. Read from the server's process, and only while a configuration is completed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from brisk.errors import InvalidConfigurationError

_OPTION = "--backend-config"
_NAMES = ("", "onnxruntime", "brisk")
"""Of backends, the one that wins last: everybody's, that of ONNX models, Brisk."""
_SETTING = "default-max-batch-size"
DEFAULT_MAX_BATCH_SIZE = 4
"""Triton's own."""


def default_max_batch_size(command_line: Sequence[bytes]) -> int:
    """What ``max_batch_size`` is completed to where a model can be batched.

    ``command_line``: the server's. Raises InvalidConfigurationError where it is no whole number.
    """
    said = dict(_settings(command_line))
    for name in reversed(_NAMES):
        if name in said:
            text = said[name]
            if not text.isdecimal() or int(text) > 2**31 - 1:
                raise InvalidConfigurationError(
                    f"{_OPTION}={name + ',' if name else ''}{_SETTING} must be a whole number, "
                    f"not '{text:.60}'"
                )
            return int(text)
    return DEFAULT_MAX_BATCH_SIZE


def _settings(command_line: Sequence[bytes]) -> Iterator[tuple[str, str]]:
    """Backend's name and value of each ``default-max-batch-size``, in order."""
    arguments = [each.decode(errors="replace") for each in command_line]
    for position, argument in enumerate(arguments):
        option, is_joined, text = argument.partition("=")
        if option != _OPTION:
            continue
        if not is_joined:
            text = arguments[position + 1] if position + 1 < len(arguments) else ""
        name, is_named, rest = text.partition(",")
        setting, _, value = (rest if is_named else text).partition("=")
        if setting == _SETTING and (name in _NAMES or not is_named):
            yield (name if is_named else ""), value.strip()
