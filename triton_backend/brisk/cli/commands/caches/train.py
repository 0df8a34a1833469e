"""``brisk caches train``: trains a model's learned caches from options and data."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from brisk.cli.commands.caches import options
from brisk.cli.commands.models import ModelArgument, VersionOption
from brisk.cli.views.model_files import model_file
from brisk.errors import InvalidRequestError

if TYPE_CHECKING:
    from brisk.exits.cascade import Cascade
    from brisk.exits.data.reading import ImageForm
    from brisk.exits.data.samples import Division, SampleGroups, Samples
    from brisk.exits.exploration import ExplorationSettings
    from brisk.exits.guarantee.calibration import Promise
    from brisk.exits.model_graph import ModelGraph
    from brisk.settings import Tolerance

NOTHING_WRITTEN = 3
"""The exit status if no caches are written."""


def train(
    model: ModelArgument,
    data: Annotated[
        Path,
        typer.Option(
            help="Inputs like those that will be served: an .npz with an array for each input and "
            "perhaps `labels`, a folder of such files, or a folder of images."
        ),
    ],
    accuracy: Annotated[
        float, typer.Option(help="Share of early answers that must agree with the model's own.")
    ] = 0.97,
    confidence: Annotated[
        float, typer.Option(help="Confidence of the proof of --accuracy on held-out data.")
    ] = 0.95,
    memory_budget: Annotated[
        str | None,
        typer.Option(help="Most memory of all caches together: bytes, or 500k, 64M, 1G."),
    ] = None,
    miss_cost: Annotated[
        float,
        typer.Option(
            help="Latency overhead allowed for inputs that take no exit, as a fraction of the "
            "model's latency; 1: the mean alone counts."
        ),
    ] = 0.02,
    fit_data: Annotated[
        Path | None,
        typer.Option(
            help="More inputs to fit the caches on; they need not resemble the served ones."
        ),
    ] = None,
    variants: Annotated[
        str | None,
        typer.Option(help="The only variants to try, separated by ';': `Pool(4096);Conv(3,1)`."),
    ] = None,
    points: Annotated[int, typer.Option(help="Most exit points to explore.")] = 8,
    judges: Annotated[
        str,
        typer.Option(
            help="The judges of early answers to try: `gated`, those that reject "
            "out-of-distribution inputs by their distance, or `all`."
        ),
    ] = "gated",
    evaluation_mode: Annotated[
        str,
        typer.Option(
            "--look-ups",
            help="How exits are evaluated: asynchronous (by the exit thread), synchronous (by the "
            "model's), or automatic: what is faster on average.",
        ),
    ] = "automatic",
    output: Annotated[
        str | None, typer.Option(help="The output with the class scores; by default inferred.")
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(
            help="Which values count as the model's own, if its output is no class scores: "
            "`cosine 0.99` or `absolute 0.01`, for example."
        ),
    ] = None,
    smaller: Annotated[
        Path | None,
        typer.Option(
            help="A smaller model that may answer, too: an ONNX file with the same inputs.",
            resolve_path=True,
        ),
    ] = None,
    version: VersionOption = None,
    jobs: Annotated[
        int | None, typer.Option(help="Caches trained concurrently; by default as many as cores.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of the model while it is measured.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    scale: Annotated[float, typer.Option(help="Images: divisor of pixel values.")] = 1.0,
    mean: Annotated[
        str, typer.Option(help="Images: mean to subtract then, for each channel.")
    ] = "0",
    deviation: Annotated[
        str, typer.Option(help="Images: deviation to divide by then, for each channel.")
    ] = "1",
    keep_data: Annotated[
        bool,
        typer.Option(
            help="Keep some of the data beside the caches, readable by its owner only; without it "
            "they cannot adapt to the traffic."
        ),
    ] = True,
) -> None:
    """Explore, compose and calibrate caches; write `model.caches` beside `model.onnx`.

    An interrupted training resumes. Without gain or proof nothing is written: exit status 3.
    """
    from brisk.exits.exploration import ExplorationSettings

    settings = ExplorationSettings(
        accuracy=options.share("accuracy", accuracy),
        confidence=options.share("confidence", confidence),
        miss_cost=options.miss_cost(miss_cost),
        memory_budget_bytes=None if memory_budget is None else options.size_bytes(memory_budget),
        points=options.count("points", points),
        variants=options.variant_names(variants),
        smaller=smaller,
        jobs=len(os.sched_getaffinity(0)) if jobs is None else options.count("jobs", jobs),
        threads=options.count("threads", threads),
        seed=options.seed(seed),
        output=output,
        evaluation_mode=options.evaluation_mode(evaluation_mode),
        judges=options.judges(judges),
    )
    subject = _subject(model_file(model, version), output, tolerance, smaller)
    training_data = _training_data(
        subject,
        data,
        fit_data,
        options.image_form(scale, mean, deviation),
        seed,
        settings.promise.fewest_inputs,
    )
    if len(training_data.groups.groups) > 1:  # a cache reads values of one shape
        subject = subject._replace(is_whole=True)
    _check_proof(training_data.division, settings.promise)
    if not _train(subject, training_data, settings, keep_data=keep_data):
        raise typer.Exit(NOTHING_WRITTEN)


def _train(
    subject: _Subject,
    training_data: _TrainingData,
    settings: ExplorationSettings,
    *,
    keep_data: bool,
) -> bool:
    """Train caches, print what came of it, and write them; return whether there are any."""
    from rich.console import Console

    from brisk.artefacts.store import locked
    from brisk.cli.views.caches import RichProgress, bars, print_exploration, print_outcome
    from brisk.exits.cascade_file import unchanged
    from brisk.exits.exploration import explore, explore_whole

    groups, samples, more, _ = training_data
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    cascade: Cascade | None
    with unchanged(subject.file) as digest, bars(console) as drawn:
        folder = _work_folder(digest, subject.scores, groups, more, settings.seed)
        progress = RichProgress(drawn)
        with locked(folder):  # `brisk cache clear` leaves it
            if subject.is_whole:
                whole = explore_whole(
                    subject.file, groups, subject.tolerance, settings, progress, folder
                )
                cascade, reason, verification = whole.cascade, whole.reason, whole.verification
            else:
                explored = explore(subject.file, samples, folder, settings, more, progress)
                cascade, reason = explored.cascade, explored.reason
                verification = explored.verification
    if not subject.is_whole:
        print_exploration(console, explored)
    print_outcome(console, cascade, verification)
    if cascade is None:
        console.print(f"no caches were written: {reason}", style="yellow")
    else:
        for written in _write(subject, cascade, training_data if keep_data else None):
            console.print(f"written: {written}")
    shutil.rmtree(folder)
    return cascade is not None


class _Subject(NamedTuple):
    """The model that caches are trained for."""

    file: Path
    graph: ModelGraph
    scores: str
    """The name of its value with the scores."""
    tolerance: Tolerance | None
    is_whole: bool
    """Whether it can have no caches at hidden values, only approximate models before it."""


def _subject(
    file: Path, output: str | None, tolerance: str | None, smaller: Path | None
) -> _Subject:
    """Read and check the models. Raises InvalidModelError, InvalidConfigurationError."""
    from brisk.exits.model_graph import can_have_caches, read_graph
    from brisk.exits.scores import find_scores, find_values

    graph = read_graph(file)
    tolerated = None if tolerance is None else options.tolerated(tolerance, output)
    scores = find_scores(graph, output) if tolerated is None else find_values(graph, tolerated)
    if smaller is not None:
        from brisk.exits.learning.smaller import check_smaller

        check_smaller(smaller, graph, scores)
    is_whole = tolerated is not None or not can_have_caches(graph, scores.position)
    return _Subject(file, graph, scores.value, tolerated, is_whole)


class _TrainingData(NamedTuple):
    """The data that a training reads, and its division."""

    groups: SampleGroups
    samples: Samples
    """All samples, labels included; if rows have several shapes, those of the most frequent."""
    more: Samples | None
    """Further inputs to fit on, which need not be like those served; None if there are none."""
    division: Division


def _training_data(
    subject: _Subject,
    data: Path,
    fit_data: Path | None,
    form: ImageForm,
    seed: int,
    proving: int,
) -> _TrainingData:
    from brisk.exits.data.reading import joined, read_parts, read_samples
    from brisk.exits.data.samples import SampleGroups, divide

    parts = read_parts(data, subject.graph, form)
    groups = SampleGroups.of(parts)
    is_alike = len(groups.groups) == 1
    samples = joined(parts, data) if is_alike else groups.largest
    more = None
    if fit_data is not None and is_alike and not subject.is_whole:  # a whole model is not fitted
        more = read_samples(fit_data, subject.graph, form)
    division = divide(samples if is_alike else groups, seed, more, proving=proving)
    return _TrainingData(groups, samples, more, division)


def _write(subject: _Subject, cascade: Cascade, kept: _TrainingData | None) -> Iterator[Path]:
    """Write the caches, and the part of ``kept`` that they learn from later; yield each file once
    it is written."""
    from brisk.exits.adaptation.reference import write_reference
    from brisk.exits.cascade_file import write_cascade
    from brisk.exits.files.versions import REFERENCE_SUFFIX, caches_file

    target = caches_file(subject.file)
    # of the caches before, or of none: `reference_file` may name that of learned ones
    reference = target.with_suffix(REFERENCE_SUFFIX)
    write_cascade(target, cascade, outdated=reference)
    yield target
    if kept is not None and not subject.is_whole:
        write_reference(reference, cascade.model_digest, kept.samples, kept.division, kept.more)
        yield reference


def _check_proof(division: Division, promise: Promise) -> None:
    """Raise InvalidRequestError if the held-out inputs are too few for any training to prove the
    promise."""
    held_out, needed = len(division.calibrate), promise.fewest_inputs
    if held_out >= needed:
        return
    parts = (division.fit, division.select, division.tune, division.calibrate)
    samples = sum(map(len, parts))
    most = (1 - promise.confidence) ** (1 / held_out)
    raise InvalidRequestError(
        f"accuracy {promise.accuracy:.2%} with confidence {promise.confidence:.0%} is proved by "
        f"{needed} held-out samples and more; of these {samples} {held_out} are held out, which "
        f"prove {most:.1%} at best: give some {-(-samples * needed // held_out)}, better several "
        "times as many, or a lower --accuracy"
    )


def _work_folder(
    model: str, scores: str, samples: SampleGroups, more: Samples | None, seed: int
) -> Path:
    """Return the work folder of the model of this digest, these scores, these samples and this
    seed, with the files of an interrupted training.

    Its mode is 0700, since samples may be private.
    """
    import hashlib

    from brisk.exits.files.versions import training_folders

    digest = hashlib.sha256(f"{model} {seed} {scores} ".encode())
    for part in (*samples.groups, *([] if more is None else [more])):
        for name, array in sorted(part.inputs.items()):
            digest.update(name.encode() + array.tobytes())
    folder = training_folders() / digest.hexdigest()[:32]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
