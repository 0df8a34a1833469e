"""The policy of whether a prepared form or the plain weights give the sooner first answer: pure.

Artefacts are larger than models: ResNet-50's 1.15 times, VGG-16's 1.7 times (kernels' layouts).
Below some bandwidth they save less time than their extra bytes take (Flashpoint's levels, 5.1,
with the cost of a start).
"""

from __future__ import annotations

from collections.abc import Sequence

RAW_START_S = 0.05
"""The additional time until the first answer of a start from the model's own file, compared with
its prepared form: 45 to 57 ms for six models of 20 to 550 MB (``brisk bench cold``)."""

UNKNOWN_BYTES_PER_S = 125e6
"""The bandwidth that is assumed if none was measured: 1 Gbit/s."""


def is_form_sooner(form_bytes: int, raw_bytes: int, bytes_per_s: float) -> bool:
    """Whether a prepared form gives the sooner answer, by the missing bytes of form and file.

    Both are read while they arrive. The work after the last byte is the same, except that a start
    from the file takes ``RAW_START_S`` more.
    """
    return form_bytes / bytes_per_s < raw_bytes / bytes_per_s + RAW_START_S


def form_key(name: str) -> str:
    """Return the part of a form's name that says where it fits: the key of engine, processor and
    all else but the model."""
    return name.rpartition("-")[2]


def likely_form(names: Sequence[str], key: str) -> str:
    """Return which of a model's forms a start on this host will probably take; empty if none.

    ``key``: the key of the form that was last taken on this host; empty if none was. Then a single
    form is likely: most hosts are like the publisher's.
    """
    if key:
        return next((name for name in names if form_key(name) == key), "")
    return names[0] if len(names) == 1 else ""


def expected_bytes_per_s(measured: float, best: float) -> float:
    """Return the currently measured rate, else the best ever seen, else ``UNKNOWN_BYTES_PER_S``;
    an argument of 0 is unknown."""
    return measured or best or UNKNOWN_BYTES_PER_S
