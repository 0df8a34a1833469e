"""The options of ``brisk caches train``, each parsed by a function of its own.

InvalidConfigurationError names a wrong one.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, TypeVar

from brisk.errors import InvalidConfigurationError

if TYPE_CHECKING:
    from brisk.exits.data.reading import ImageForm
    from brisk.exits.exploration.settings import EvaluationMode
    from brisk.exits.heads.exit_model import Judge
    from brisk.settings import Tolerance

_Number = TypeVar("_Number", int, float)

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


def share(name: str, value: float) -> float:
    return _checked(name, value, 0.5 <= value < 1, "from 0.5 to below 1")


def miss_cost(value: float) -> float | None:
    """Check the option ``--miss-cost``; return None for 1, for which only the mean counts."""
    _checked("miss-cost", value, 0 < value <= 1, "above 0, at most 1")
    return None if value == 1 else value


def count(name: str, value: int) -> int:
    return _checked(name, value, value >= 1, "at least 1")


def seed(value: int) -> int:
    return _checked("seed", value, value >= 0, "at least 0")


def _checked(name: str, value: _Number, fits: bool, expected: str) -> _Number:
    if not fits:
        raise InvalidConfigurationError(f"--{name} must be {expected}, not {value}")
    return value


def variant_names(text: str | None) -> tuple[str, ...]:
    """Return the names of the variants in ``text``; all variants if it is empty."""
    from brisk.exits.cascade import INT8
    from brisk.exits.heads.predictors import CATALOGUE, variant

    if not text:
        return *(one.name for one in CATALOGUE), INT8
    names = (name.strip() for name in text.split(";"))
    return tuple(name if name == INT8 else variant(name).name for name in names)


def evaluation_mode(text: str) -> EvaluationMode:
    from brisk.exits.exploration.settings import EvaluationMode

    ways = [way.value for way in EvaluationMode]
    if text not in ways:
        raise InvalidConfigurationError(
            f"--look-ups must be one of {', '.join(ways)}, not '{text}'"
        )
    return EvaluationMode(text)


def judges(text: str) -> tuple[Judge, ...]:
    from brisk.exits.heads.exit_model import GATED, OF_CLASSES

    if text not in ("gated", "all"):
        raise InvalidConfigurationError(f"--judges must be gated or all, not '{text}'")
    return GATED if text == "gated" else OF_CLASSES


def tolerated(text: str, output: str | None) -> Tolerance:
    from brisk.settings import tolerance

    if output is not None:
        raise InvalidConfigurationError("--output names class scores, --tolerance is of others")
    try:
        return tolerance(text)
    except ValueError as error:
        raise InvalidConfigurationError(f"--tolerance {error}, not '{text}'") from None


def image_form(scale: float, mean: str, deviation: str) -> ImageForm:
    from brisk.exits.data.reading import ImageForm

    means, divisors = _numbers("mean", mean), _numbers("deviation", deviation)
    for each in means:
        _checked("mean", each, math.isfinite(each), "finite numbers")
    _checked("scale", scale, 0 < scale < math.inf, "a number above 0")
    for each in divisors:
        _checked("deviation", each, 0 < each < math.inf, "numbers above 0")
    return ImageForm(scale, means, divisors)


def size_bytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,18})([kmg]?)b?", text.strip().lower())
    if match is None:
        raise InvalidConfigurationError(
            f"--memory-budget must be bytes, as 500000, 500k, 64M or 1G, not '{text}'"
        )
    return int(match[1]) * _UNITS[match[2]]


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidConfigurationError(
            f"--{name} must be numbers separated by commas, not '{text}'"
        ) from None
