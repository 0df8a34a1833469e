"""The files of the versions of a model's caches, and of the samples that new ones are made of.

``model.caches`` next to the model was trained by hand; nothing else writes there. Versions that
are learned from traffic belong to this machine and may reveal its requests: they lie in the cache
directory, in a folder of mode 0700 for each model file, with files of mode 0600:

``model.path``: the model file, and, by the note's time, when its traffic was last learned from.

``samples/``: files of inputs (``brisk.exits.files.sample_files``); their names begin with the time
they were written (ns, 20 digits), so sorted names are in order of time. The runtime writes and
bounds them.

``learned.caches``: the version learned from the traffic alone, if none was trained by hand; its
reference data lie in ``learned.reference``, its progress in ``learning.json``
(``brisk.exits.files.learning_record``).

``candidate.caches``: the version that adaptation publishes, with a ``revision`` above that of the
version it was made from. The runtime serves it on trial, interleaved with its predecessor, and
then renames it to ``adapted.caches``, or deletes it if it does worse, or if caches were trained
since: it names the file that adaptation began with. Adaptation goes on from ``latest``.

``previous.caches``: the adapted version before, which is served again if the present one breaks
its promise.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

from brisk.errors import InvalidModelError, may_pass
from brisk.exits.files.container import digest_at_end, read_header, tapped_values
from brisk.ownership import make_private
from brisk.settings import cache_directory

CACHES_SUFFIX = ".caches"
REFERENCE_SUFFIX = ".reference"

SAMPLES, TRAINING = "samples", "training"
"""The folders in a private folder of samples, and of what is made of them while it is learned."""

OF_MODEL = "model.path"
"""The file in a private folder that says of which model it is; its time is that of the last use.
"""

MADE_OF = "trained_digest"
"""The key in the header of an adapted version with ``digest_at_end`` of the trained file."""


def caches_file(model_file: Path) -> Path:
    """Return the file of caches that were trained by hand; it may not exist."""
    return model_file.with_suffix(CACHES_SUFFIX)


def private_folder(model_file: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of what is learned from a model's traffic; it may not exist."""
    place = hashlib.blake2b(os.fsencode(os.path.realpath(model_file)), digest_size=8).hexdigest()
    return private_folders(environment) / place


def private_folders(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of all models' private ones; it may not exist."""
    return cache_directory(environment) / "caches"


def note_use(model_file: Path) -> None:
    """Note in the private folder of a model, if there is one, which that is, and that it is used
    now. Raises OSError."""
    note = private_folder(model_file) / OF_MODEL
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.fsencode(os.path.realpath(model_file)))


def idle_s(model_file: Path) -> float:
    """Return the time since the traffic of a model was last learned from, by any runtime; infinity
    if that is unknown."""
    try:
        return time.time() - (private_folder(model_file) / OF_MODEL).stat().st_mtime
    except OSError:
        return math.inf


def training_folders() -> Path:
    """Return the folder of what interrupted trainings leave; it may not exist."""
    return cache_directory() / TRAINING


def samples_folder(model_file: Path) -> Path:
    return private_folder(model_file) / SAMPLES


def adapted_file(model_file: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the last version that has proved itself on live traffic; it may not exist."""
    return private_folder(model_file, environment) / "adapted.caches"


def learned_file(model_file: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the version learned from the traffic alone; it may not exist."""
    return private_folder(model_file, environment) / "learned.caches"


def trained_file(model_file: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the version that adaptation starts from, trained by hand or else learned.

    It may not exist.
    """
    trained, learned = caches_file(model_file), learned_file(model_file, environment)
    return learned if not trained.exists() and learned.exists() else trained


def reference_file(model_file: Path) -> Path:
    """Return the file of the reference data of ``trained_file``; it may not exist."""
    return trained_file(model_file).with_suffix(REFERENCE_SUFFIX)


def candidate_file(model_file: Path) -> Path:
    """Return the version that has yet to prove itself; it may not exist."""
    return private_folder(model_file) / "candidate.caches"


def previous_file(model_file: Path) -> Path:
    """Return the adapted version before the last one; it may not exist."""
    return private_folder(model_file) / "previous.caches"


def promote(model_file: Path) -> None:
    """Make the candidate the adapted version. Raises FileNotFoundError if there is none."""
    candidate, adapted = candidate_file(model_file), adapted_file(model_file)
    os.utime(candidate)  # one that does not say what it was made of is newer than that
    with contextlib.suppress(FileNotFoundError):
        adapted.rename(previous_file(model_file))
    candidate.rename(adapted)


def take_back(model_file: Path) -> None:
    """Restore the version before the adapted one, which broke its promise."""
    try:
        previous_file(model_file).rename(adapted_file(model_file))
    except FileNotFoundError:
        adapted_file(model_file).unlink(missing_ok=True)


def make_private_folder(model_file: Path) -> Path:
    """Create the private folder and that of samples if they do not exist. Raises OSError."""
    folder = private_folder(model_file)
    make_private(samples_folder(model_file))
    note_use(model_file)
    return folder


def latest(model_file: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the version to serve: the adapted one, if it descends from the trained one."""
    trained = trained_file(model_file, environment)
    adapted = adapted_file(model_file, environment)
    return adapted if adapted.exists() and _descends(adapted, trained, trained) else trained


def taps_of_latest(model_file: Path, *, takes_learned: bool = True) -> tuple[str, ...]:
    """Return the values behind which a model has to stop for the version to serve. There are none
    for one that was learned from the traffic, unless the entry ``takes_learned`` ones."""
    is_served = takes_learned or caches_file(model_file).exists()
    return tapped_values(latest(model_file)) if is_served else ()


def is_candidate_outdated(model_file: Path) -> bool:
    """Whether the candidate was made of other caches than the present ones.

    False if there is no candidate.
    """
    candidate, trained = candidate_file(model_file), trained_file(model_file)
    return candidate.exists() and not _descends(candidate, trained, latest(model_file))


def _descends(adapted: Path, trained: Path, before: Path) -> bool:
    """Whether ``adapted`` was made of the caches in ``trained``: those that are trained anew
    replace it, whatever their time.

    A version of Brisk that did not note of which it made a file is taken to have made it of
    those, if the file is newer than ``before``. So is one that cannot be read now: who serves or
    tries it reads it, and says so.
    """
    try:
        made_of = read_header(adapted).get(MADE_OF)
        if made_of:
            return bool(made_of == digest_at_end(trained))
        return adapted.stat().st_mtime_ns > before.stat().st_mtime_ns
    except (OSError, InvalidModelError) as error:
        return may_pass(error)
