"""Where the versions of a model's caches lie, and the samples that new ones are made of.

``model.caches`` beside the model is what was trained; nothing else writes there. What is learned
from the traffic is this machine's own and may tell of its requests: it lies in the cache
directory, in a folder of mode 0700 for each model file, with files of mode 0600:

``samples/``: files of inputs (``brisk.exits.files.sample_files``); their names begin with the time
they were written (ns, 20 digits), so sorted names are in order of time. The runtime writes and
bounds them.

``learned.caches``: what the traffic alone has taught, where nothing was trained; with what proves
it in ``learned.reference``, and how far it is in ``learning.json``
(``brisk.exits.files.learning_record``).

``candidate.caches``: what adaptation publishes, with a ``revision`` above that of the version it
was made from. The runtime serves it on trial beside its predecessor, and then makes it
``adapted.caches``, or deletes it where it does worse. Adaptation goes on from ``latest``.

``previous.caches``: the adapted version before, for the case that the present one turns out to
break its promise.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from brisk.ownership import make_private
from brisk.settings import cache_directory

CACHES_SUFFIX = ".caches"
REFERENCE_SUFFIX = ".reference"


def caches_file(model_file: Path) -> Path:
    """Where the caches of ``model_file`` lie."""
    return model_file.with_suffix(CACHES_SUFFIX)


def private_folder(model_file: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Of what is learned from a model's traffic; it may not be there."""
    place = hashlib.blake2b(os.fsencode(os.path.realpath(model_file)), digest_size=8).hexdigest()
    return cache_directory(environment) / "caches" / place


def training_folder(name: str) -> Path:
    """Of what an interrupted training leaves; it may not be there."""
    return cache_directory() / "training" / name


def samples_folder(model_file: Path, environment: Mapping[str, str] = os.environ) -> Path:
    return private_folder(model_file, environment) / "samples"


def adapted_file(model_file: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """The last version that has proved itself on live traffic; it may not be there."""
    return private_folder(model_file, environment) / "adapted.caches"


def learned_file(model_file: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """What was learned from the traffic alone; it may not be there."""
    return private_folder(model_file, environment) / "learned.caches"


def trained_file(model_file: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """What adaptation descends from: trained by hand, or else learned; it may not be there."""
    trained, learned = caches_file(model_file), learned_file(model_file, environment)
    return learned if not trained.exists() and learned.exists() else trained


def reference_file(model_file: Path) -> Path:
    """Where the reference data of ``trained_file`` lie."""
    return trained_file(model_file).with_suffix(REFERENCE_SUFFIX)


def candidate_file(model_file: Path) -> Path:
    """A version that has yet to prove itself; it may not be there."""
    return private_folder(model_file) / "candidate.caches"


def previous_file(model_file: Path) -> Path:
    """The adapted version before the last one; it may not be there."""
    return private_folder(model_file) / "previous.caches"


def promote(model_file: Path) -> None:
    """The candidate has proved itself. Raises FileNotFoundError where there is none."""
    candidate, adapted = candidate_file(model_file), adapted_file(model_file)
    os.utime(candidate)  # else caches trained while it was on trial would be newer
    with contextlib.suppress(FileNotFoundError):
        adapted.rename(previous_file(model_file))
    candidate.rename(adapted)


def take_back(model_file: Path) -> None:
    """The adapted version broke its promise: the one before is the last one again."""
    try:
        previous_file(model_file).rename(adapted_file(model_file))
    except FileNotFoundError:
        adapted_file(model_file).unlink(missing_ok=True)


def make_private_folder(model_file: Path) -> Path:
    """The folder and the one for samples, made if need be. Raises OSError."""
    folder = private_folder(model_file)
    make_private(samples_folder(model_file))
    return folder


def latest(model_file: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """What is to be served: the adapted version, where it descends from what is trained now."""
    trained = trained_file(model_file, environment)
    adapted = adapted_file(model_file, environment)
    return adapted if adapted.exists() and _is_newer(adapted, trained) else trained


def _is_newer(adapted: Path, trained: Path) -> bool:
    """Caches trained anew replace what was adapted before."""
    try:
        return adapted.stat().st_mtime_ns > trained.stat().st_mtime_ns
    except OSError:
        return False
