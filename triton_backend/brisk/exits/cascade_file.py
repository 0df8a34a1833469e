"""The file of a model's caches: written next to the model, used only if it is whole and fits.

``model.caches`` lies in the version's directory, next to ``model.onnx``. It names the digest of
the model that it was trained for. A file of another or an older model, or a damaged one, is
reported and ignored, and the model is served without caches.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from brisk.errors import BriskError, InvalidModelError, UnavailableError, may_pass
from brisk.exits.cascade import Cascade, Exit, Expected, Level, answer_form
from brisk.exits.files.container import DamagedFileError, read_container, write_container
from brisk.exits.files.versions import CACHES_SUFFIX, MADE_OF, REFERENCE_SUFFIX
from brisk.exits.guarantee.calibration import CascadeCount, ExitCount
from brisk.exits.heads.exit_model import AnswerForm, Judge
from brisk.exits.model_graph import ExitPoint
from brisk.exits.scores import ScoreForm, Scores
from brisk.paths import open_file, open_inside
from brisk.settings import Tolerance, tolerance

_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""The errors that a malformed header may raise."""


MOST_THREADS = 1024

_VARIANT = re.compile(r"[A-Za-z0-9(),]{1,40}")
"""The name of a variant. It becomes a part of the names of files, metrics and answers."""


def digest_of(model_file: Path) -> str:
    """Return the SHA-256 of the model file and the files of its external data, hexadecimal.

    Raises OSError, and InvalidModelError if one of them leads out of the model's folder or cannot
    be read.
    """
    digest = hashlib.sha256()
    with open_file(model_file) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    for name in _external_data(model_file):
        with open_inside(model_file.parent, name, "external data") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


class ReplacedModelError(UnavailableError):
    """The model's file was replaced while something was made of it; to be made anew."""


@contextmanager
def unchanged(model_file: Path) -> Iterator[str]:
    """Give ``digest_of`` the model, which stays the same for as long as the block runs.

    Whatever the block reads of the model is of that digest. Raises ReplacedModelError at the end
    if the model is another one by then, also in place of a BriskError of the block, which may come
    of parts of two models; and like ``digest_of``.
    """
    digest = digest_of(model_file)
    try:
        yield digest
    except BriskError as error:
        _check_unchanged(model_file, digest, error)
        raise
    _check_unchanged(model_file, digest, None)


def _check_unchanged(model_file: Path, digest: str, cause: BriskError | None) -> None:
    try:
        is_same = digest_of(model_file) == digest
    except (FileNotFoundError, InvalidModelError):
        is_same = False
    if not is_same:
        raise ReplacedModelError(
            f"model '{model_file}' was replaced while caches were trained for it or read; they "
            "are of the file before, train again"
        ) from cause


def _external_data(model_file: Path) -> Sequence[str]:
    """Return the files of external data, relative to the model's folder.

    The model is parsed only if its folder has other files: parsing holds the interpreter's lock.
    """
    own = (CACHES_SUFFIX, REFERENCE_SUFFIX)
    others = (each for each in model_file.parent.iterdir() if each.suffix not in own)
    if all(each.name == model_file.name for each in others):
        return ()
    from brisk.segments.model.model_file import read_model_file  # with onnx: 60 ms

    try:
        return sorted(read_model_file(model_file).files.keys() - {model_file.name})
    except InvalidModelError as error:
        if may_pass(error):
            raise
        return ()  # its load reports the error


def write_cascade(
    path: Path, cascade: Cascade, mode: int = 0o644, outdated: Path | None = None
) -> None:
    """Publish ``cascade`` at ``path``; a reader sees the old file or the whole new one.

    ``outdated``: the file with data of the old one, which is deleted once the new one is written.
    """
    tensors = {
        f"{index}.onnx": np.frombuffer(exit_.model, np.uint8)
        for index, exit_ in enumerate(cascade.exits)
    }
    header = {
        "model_digest": cascade.model_digest,
        "scores": asdict(cascade.scores),
        "exits": [
            {
                **asdict(exit_.point),
                **{key: getattr(exit_, name) for key, name in _OF_AN_EXIT.items()},
            }
            for exit_ in cascade.exits
        ],
        "levels": [_level_entry(level) for level in cascade.levels],
        "confidence": cascade.confidence,
        "expected": asdict(cascade.expected),
        "synchronous": cascade.synchronous,
        "revision": cascade.revision,
        "repairs": cascade.repairs,
        MADE_OF: cascade.trained_digest,
    }
    write_container(path, header, tensors, mode, outdated)


_OF_AN_EXIT = {
    "variant": "variant",
    "shape": "shape",
    "lookup_s": "evaluation_s",
    "memory_bytes": "memory_bytes",
    "saved_s": "saved_s",
    "burden_s": "overhead_s",
    "noticed_at": "noticed_at",
    "judge": "judge",
    "threads": "threads",
}
"""The keys of an exit's entry in the file, with the attributes that they hold."""


def _level_entry(level: Level) -> dict[str, Any]:
    """Return the level as JSON: an exit that never answers has null for its threshold."""
    return {
        "accuracy": level.accuracy,
        "thresholds": [None if math.isinf(value) else value for value in level.thresholds],
        "inputs": level.count.inputs,
        "wrong_anywhere": level.count.wrong_anywhere,
        "answered": [exit_count.answered for exit_count in level.count.exits],
        "right": [exit_count.right for exit_count in level.count.exits],
    }


def read_cascade(path: Path, model_digest: str | None) -> Cascade:
    """Return the caches in ``path``, which must be for the model of ``model_digest``; None: any.

    Raises DamagedFileError that says what is wrong, OSError if there is no file.
    """
    container = read_container(path)
    header = container.header
    try:
        digest = header["model_digest"]
        if model_digest is not None and digest != model_digest:
            raise DamagedFileError(
                f"it was trained for another model (digest {str(digest)[:12]}…, this one's is "
                f"{model_digest[:12]}…); train again"
            )
        described = header["scores"]
        scores = Scores(
            value=described["value"],
            position=int(described["position"]),
            classes=int(described["classes"]),
            form=ScoreForm(described["form"]),
            is_certain=True,
            tolerance=_read_tolerance(described.get("tolerance")),
            others=tuple(map(str, described.get("others", ()))),
            rank=int(described.get("rank", 2)),
        )
        if scores.rank < 2 or (scores.tolerance is None and scores.others):
            raise DamagedFileError(
                f"its answers have {scores.rank} dimensions, and {scores.others} beside"
            )
        if (scores.form is ScoreForm.VALUES) != (scores.tolerance is not None):
            raise DamagedFileError(
                f"its answers are {described['form']} within {scores.tolerance}"
            )
        exits = tuple(
            _read_exit(index, entry, answer_form(scores), container.tensors)
            for index, entry in enumerate(header["exits"])
        )
        if any((one.judge is Judge.TYPICAL) != (scores.tolerance is not None) for one in exits):
            raise DamagedFileError(f"its exits do not judge answers within {scores.tolerance}")
        expected = header["expected"]
        return Cascade(
            model_digest=digest,
            scores=scores,
            exits=exits,
            levels=tuple(_read_level(entry, len(header["exits"])) for entry in header["levels"]),
            confidence=_share_below_1("confidence", header["confidence"]),
            expected=Expected(**{key: _finite(key, each) for key, each in expected.items()}),
            synchronous=bool(header["synchronous"]),
            revision=int(header["revision"]),
            repairs=header.get("repairs", False) is True,
            trained_digest=str(header.get(MADE_OF, "")),
        )
    except DamagedFileError:
        raise
    except (*_MALFORMED, BriskError) as error:
        raise DamagedFileError(f"its header is not that of caches: {error!r}") from error


def _read_tolerance(given: object) -> Tolerance | None:
    """Return the tolerance. Raises errors that ``read_cascade`` reports as a malformed header."""
    if given is None:
        return None
    if not isinstance(given, list):
        raise DamagedFileError(f"a tolerance is {given!r:.60}")
    return tolerance(" ".join(map(str, given)))


def _read_exit(
    index: int, entry: Mapping[str, Any], form: AnswerForm, tensors: Mapping[str, np.ndarray]
) -> Exit:
    shape = tuple(int(size) for size in entry["shape"])
    value, noticed_at, variant = entry["value"], entry["noticed_at"], entry["variant"]
    if not isinstance(value, str) or not isinstance(noticed_at, str | None):
        raise DamagedFileError("an exit stands at no value of a model")
    if not isinstance(variant, str) or not _VARIANT.fullmatch(variant):
        raise DamagedFileError(f"its variant is {variant!r:.60}; expected a name as Pool(4096)")
    return Exit(
        point=ExitPoint(int(entry["position"]), value, _finite("share", entry["share"])),
        variant=variant,
        shape=shape,
        form=form,
        model=tensors[f"{index}.onnx"].tobytes(),
        evaluation_s=_finite("lookup_s", entry["lookup_s"]),
        memory_bytes=int(entry["memory_bytes"]),
        saved_s=_finite("saved_s", entry["saved_s"]),
        overhead_s=_finite("burden_s", entry["burden_s"]),
        noticed_at=noticed_at,
        judge=Judge(entry.get("judge", Judge.SELECTOR)),
        threads=_thread_count(entry.get("threads", 1)),
    )


def _finite(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DamagedFileError(f"its {name} is {value!r:.60}; expected a finite number")
    return float(value)


def _share_below_1(name: str, value: object) -> float:
    share = _finite(name, value)
    if not 0 < share < 1:
        raise DamagedFileError(f"its {name} is {share}; expected one between 0 and 1")
    return share


def _thread_count(value: object) -> int:
    if not isinstance(value, int) or not 1 <= value <= MOST_THREADS:
        raise DamagedFileError(
            f"an exit is evaluated on {value!r} threads; expected 1 to {MOST_THREADS}"
        )
    return value


def _read_level(entry: Mapping[str, Any], exits: int) -> Level:
    thresholds: Sequence[float | None] = entry["thresholds"]
    if len(thresholds) != exits or len(entry["answered"]) != exits:
        raise DamagedFileError(f"a level has {len(thresholds)} thresholds for {exits} exits")
    counts = [
        ExitCount(int(answered), int(right))
        for answered, right in zip(entry["answered"], entry["right"], strict=True)
    ]
    return Level(
        accuracy=_share_below_1("accuracy", entry["accuracy"]),
        thresholds=tuple(
            math.inf if value is None else _finite("threshold", value) for value in thresholds
        ),
        count=CascadeCount(int(entry["inputs"]), tuple(counts), int(entry["wrong_anywhere"])),
    )
