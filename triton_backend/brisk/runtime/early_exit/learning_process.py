"""The process that learns a model's first early answers from its traffic alone.

``python -m brisk.runtime.early_exit.learning_process MODEL AIM --threads N``

``AIM`` has the fields of an ``Aim`` as JSON, with the stamps of the files that were loaded: if
other ones lie in their places now, nothing is done. Without a record of the model
(``brisk.exits.files.learning_record``) it checks whether the model can have early answers at all.
Else it takes the samples that workers have written, learns from the older ones, proves the promise
on the newest, and writes caches that save time for the workers to serve. It lives as long as the
worker that started it, at the lowest priority. Files are whole wherever it is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from brisk.os_priority import step_aside
from brisk.runtime.log import LOGGER, start_logging

# Before the imports of libraries that read the number of threads from the environment.
if __name__ == "__main__" and not step_aside():
    sys.exit(1)

import numpy as np

from brisk.artefacts.store import FOR_ALL_MACHINES, locked
from brisk.errors import BriskError, InvalidModelError, InvalidRequestError, may_pass
from brisk.exits.cascade_file import ReplacedModelError, digest_of, write_cascade
from brisk.exits.data.samples import SampleGroups, Samples
from brisk.exits.files.container import DamagedFileError
from brisk.exits.files.learning_record import (
    BUSY,
    MOST_TRIES,
    OTHER_FILES,
    TRY_CONFIDENCE,
    Aim,
    LearningRecord,
    Stage,
    collected,
    lock_file,
    read_record,
    rows_wanted,
    samples_limit_bytes,
    smaller_file,
    write_record,
)
from brisk.exits.files.sample_files import count_again, delete_samples, read_samples_file
from brisk.exits.files.versions import (
    REFERENCE_SUFFIX,
    TRAINING,
    latest,
    learned_file,
    make_private_folder,
    private_folder,
    samples_folder,
)
from brisk.exits.model_graph import ModelGraph, can_be_fed, can_have_caches, read_graph
from brisk.exits.scores import find_scores, find_values, may_be_shares, uncertain
from brisk.settings import tolerance

if TYPE_CHECKING:
    from brisk.exits.exploration import Exploration, ExploredWhole

SEED = 0

POINTS = 6
VARIANTS = ("Pool(4096)", "Conv2(3,2)", "Conv3(3,2)", "int8")
"""Few variants, quick to train: learning has to end within minutes, while models are served."""

HIDDEN_BYTES = 1 << 30
"""The room on disk for hidden values during learning; those of one photograph take megabytes."""

ALIKE = 0.8
"""The least share of samples of one shape with which caches are explored, which read values of one
shape; with less only the model in int8 is."""

MORE = 4
"""The factor of samples with which learning is tried again while something is served."""

CLEARLY = 1.05
"""The factor by which the result has to be faster than what is served, the model itself at first,
to replace it: less is within what a benchmark beside the traffic is off."""

PRIVATE = 0o600


def main() -> int:
    """Do the next step for the model, write its record, and return the exit status 0.

    Return ``OTHER_FILES`` if the files are not those that were loaded, ``BUSY`` if another process
    learns for the model.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("aim", type=json.loads)
    parser.add_argument("--threads", type=int, required=True)
    given = parser.parse_args()
    start_logging()
    model, aim = given.model, Aim(*given.aim)
    if not aim.is_present(model):
        LOGGER.info(f"nothing is learned of {model}: its files are others than the loaded ones")
        return OTHER_FILES
    make_private_folder(model)
    with locked(lock_file(model), FOR_ALL_MACHINES) as is_alone:
        if not is_alone:
            LOGGER.info(f"nothing is learned of {model}: another process learns of it")
            return BUSY
        record = _next_record(model, aim, given.threads)
        if not aim.is_present(model):
            LOGGER.info(f"nothing is learned of {model}: its files were replaced meanwhile")
            return OTHER_FILES
        write_record(model, record)
    words = record.words(collected(model)[0])
    LOGGER.info(f"early answers of {model} for {aim.accuracy:.1%}: {words}")
    return 0


def _next_record(model: Path, aim: Aim, threads: int) -> LearningRecord:
    """Look at the model, or learn, whichever is due; return the record after it."""
    record = read_record(model)
    if record is not None and record.is_of_another_file(aim):
        record = _of_present_file(model, record, aim)
    if record is None or not record.is_for(aim):
        digest = ""
        with contextlib.suppress(InvalidModelError):  # what is wrong with it, the record says
            digest = digest_of(model)
        return dataclasses.replace(look_at(model, aim), model_digest=digest)
    if record.stage is Stage.LEARNING or record.is_due(*collected(model), samples_limit_bytes()):
        return learn(model, record, threads)
    return record


def _of_present_file(model: Path, record: LearningRecord, aim: Aim) -> LearningRecord | None:
    """Return a record of another file for the present one if it has the same bytes; None if not.

    Then the samples are deleted, too: they may be what the present file is never asked.
    """
    if not record.model_digest or digest_of(model) != record.model_digest:
        delete_samples(model)
        return None
    if record.stage is Stage.SERVED and not latest(model).exists():
        return None
    return record.of_copy(aim)


def look_at(model: Path, aim: Aim) -> LearningRecord:
    """Return a record that says whether the model can have early answers. Raises BriskError if it
    cannot be read now (``may_pass``)."""
    kept_to = aim.tolerance
    try:
        graph = read_graph(model)
        scores = find_values(graph, tolerance(kept_to)) if kept_to else find_scores(graph)
        if aim.needs_classes and not (scores.is_certain or may_be_shares(graph, scores)):
            raise uncertain(scores, graph.name)
        if aim.smaller:
            from brisk.exits.learning.smaller import check_smaller

            check_smaller(smaller_file(graph.path, aim.smaller), graph, scores)
        if not _has_points(graph, kept_to) and not can_be_fed(graph):
            raise InvalidModelError(
                "there is no value at which rows could leave it, and int8, the other way, reads "
                "tensors of numbers with rows alone"
            )
    except BriskError as error:
        if may_pass(error):
            raise
        return LearningRecord(Stage.UNFIT, aim, reason=_brief(error))
    return _collecting(aim)


def _has_points(graph: ModelGraph, tolerated: str) -> bool:
    """Whether the model has points for caches; none with a tolerance. Raises InvalidModelError."""
    return not tolerated and can_have_caches(graph, find_scores(graph).position)


def _collecting(aim: Aim) -> LearningRecord:
    wanted = rows_wanted(aim.accuracy, TRY_CONFIDENCE)
    return LearningRecord(Stage.COLLECTING, aim, wanted=wanted)


def learn(model: Path, record: LearningRecord, threads: int) -> LearningRecord:
    """Learn from the samples that are stored; return the record of the result.

    That is ``record`` if the model's file was replaced meanwhile: this try does not count. Raises
    BriskError if the process is to be started again, since the reason may pass.
    """
    try:
        graph = read_graph(model)
    except BriskError as error:
        if may_pass(error):
            raise
        return dataclasses.replace(record, stage=Stage.UNFIT, wanted=0, reason=_brief(error))
    folder = private_folder(model) / TRAINING
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        return _learned(graph, record, folder, threads)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _learned(
    graph: ModelGraph, record: LearningRecord, folder: Path, threads: int
) -> LearningRecord:
    model = graph.path
    samples = read_samples(graph, folder)
    is_begun = record.stage is Stage.LEARNING
    if not is_begun and not record.is_due(*collected(model), samples_limit_bytes()):
        return record  # many of those that were counted did not fit
    rows = 0 if samples is None else len(samples)
    tried = dataclasses.replace(record, samples=rows, tries=record.tries + 1, reason="")
    # a process that is killed has not tried: the next one does
    write_record(model, dataclasses.replace(record, stage=Stage.LEARNING, samples=rows))
    may_go_on = tried.tries < MOST_TRIES
    again = 2 * max(rows, record.wanted) if may_go_on else 0
    refused = dataclasses.replace(tried, stage=Stage.REFUSED, wanted=again)
    if record.speed_up and learned_file(model).exists():  # the version before is still served
        refused = dataclasses.replace(tried, stage=Stage.SERVED, wanted=0)
    if samples is None:
        return dataclasses.replace(refused, reason="there are no samples that can be read")
    try:
        return _explored(graph, samples, folder, threads, tried, refused)
    except ReplacedModelError as error:
        LOGGER.warning(str(error))
        return record
    except InvalidRequestError as error:  # samples that do not fit, or are copies of a few
        return dataclasses.replace(refused, reason=_brief(error))
    except BriskError as error:
        if may_pass(error):
            raise
        return dataclasses.replace(refused, stage=Stage.UNFIT, wanted=0, reason=_brief(error))


def _explored(
    graph: ModelGraph,
    samples: SampleGroups,
    folder: Path,
    threads: int,
    tried: LearningRecord,
    refused: LearningRecord,
) -> LearningRecord:
    try:
        from brisk.exits.exploration import Exploration
    except ImportError as error:
        return dataclasses.replace(refused, reason=f"learning takes torch ({error})")
    from brisk.exits.adaptation.reference import write_reference
    from brisk.exits.data.samples import divide

    found = _search(graph, samples, folder, threads, tried.aim)
    tried, refused = (dataclasses.replace(each, ways=found.ways) for each in (tried, refused))
    if found.cascade is None or found.verification is None:
        return dataclasses.replace(refused, reason=" ".join(found.reason.split()))
    speed_up = found.verification.base_s / found.verification.cascade_s
    if refused.stage is Stage.SERVED and speed_up < CLEARLY * tried.speed_up:
        return refused
    if speed_up < CLEARLY:
        way = ", ".join(exit_.name for exit_ in found.cascade.exits)
        return dataclasses.replace(
            refused, reason=f"{way} gains {speed_up:.2f} ×; from {CLEARLY:g} × on it is served"
        )
    target = learned_file(graph.path)
    reference = target.with_suffix(REFERENCE_SUFFIX)
    if isinstance(found, Exploration):
        alike = samples.largest
        division = divide(alike, SEED, proves_newest=True)
        # The caches come last: workers that see them find the reference, too.
        write_reference(reference, found.cascade.model_digest, alike, division)
        write_cascade(target, found.cascade, PRIVATE)
    else:  # nothing of it is trained, so nothing is trained again
        write_cascade(target, found.cascade, PRIVATE, outdated=reference)
    more = MORE * len(samples) if tried.tries < MOST_TRIES else 0
    return dataclasses.replace(tried, stage=Stage.SERVED, wanted=more, speed_up=speed_up)


def _search(
    graph: ModelGraph, samples: SampleGroups, folder: Path, threads: int, aim: Aim
) -> Exploration | ExploredWhole:
    """Explore caches and approximate models. Explore these alone if the model has no points for
    caches, samples have many shapes, or hidden values need too much room."""
    from brisk.exits.exploration import (
        ExplorationSettings,
        TooLargeError,
        explore,
        explore_whole,
    )

    settings = ExplorationSettings(
        accuracy=aim.accuracy,
        confidence=TRY_CONFIDENCE,
        points=POINTS,
        variants=VARIANTS,
        smaller=smaller_file(graph.path, aim.smaller) if aim.smaller else None,
        threads=threads,
        seed=SEED,
        needs_classes=aim.needs_classes,
        proves_newest=True,
        hidden_bytes=HIDDEN_BYTES,
    )
    alike = samples.largest
    if len(alike) >= ALIKE * len(samples) and _has_points(graph, aim.tolerance):
        try:
            return explore(graph.path, alike, folder, settings)
        except TooLargeError as error:
            LOGGER.info(f"of {graph.path} approximate models alone are tried: {error}")
    kept_to = tolerance(aim.tolerance) if aim.tolerance else None
    return explore_whole(graph.path, samples, kept_to, settings, folder=folder)


def read_samples(graph: ModelGraph, folder: Path) -> SampleGroups | None:
    """Return all stored samples that fit the model, the oldest first; None if there are none.

    Rows with NaN or infinite values are left out: they teach nothing, and are never answered
    early. Files name the rows that fit from then on, and are deleted if none does: others may be
    taken for them. ``folder``: see ``SampleGroups.of``. Raises OSError.
    """
    samples = SampleGroups.of(_fitting_samples(graph), folder)
    return samples if len(samples) else None


def _fitting_samples(graph: ModelGraph) -> Iterator[Samples]:
    for file in sorted(samples_folder(graph.path).glob("*.npz")):
        try:
            groups = read_samples_file(file)
        except (DamagedFileError, OSError) as error:  # deleted meanwhile, or damaged
            LOGGER.warning(f"samples '{file}' are left out: {error}")
            if isinstance(error, DamagedFileError):
                count_again(file, 0)
            continue
        fitting = [Samples(inputs).finite() for inputs in groups if _is_fit(inputs, graph)]
        count_again(file, sum(map(len, fitting)))
        yield from (part for part in fitting if len(part))


def _is_fit(inputs: Mapping[str, np.ndarray], graph: ModelGraph) -> bool:
    """Whether ``inputs`` have the names, types and sizes that the model reads."""
    expected = {each.name: each.type for each in graph.needed}
    if inputs.keys() != expected.keys():
        return False
    return all(
        array.dtype.name == expected[name].dtype
        and array.ndim == expected[name].rank
        and all(
            not isinstance(size, int) or size == own
            for size, own in zip((expected[name].shape or ())[1:], array.shape[1:], strict=True)
        )
        for name, array in inputs.items()
    )


def _brief(error: Exception) -> str:
    return textwrap.shorten(str(error), 200, placeholder=" …")


if __name__ == "__main__":
    sys.exit(main())
