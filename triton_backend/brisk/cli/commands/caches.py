"""``brisk caches``: train a model's learned caches, show what is there."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brisk.cli.commands.models import ModelArgument, VersionOption
from brisk.cli.views.model_files import model_file
from brisk.errors import InvalidConfigurationError, InvalidModelError, InvalidRequestError

if TYPE_CHECKING:
    from brisk.exits.cascade import Cascade
    from brisk.exits.data.samples import Division, Samples
    from brisk.exits.guarantee.calibration import Promise
    from brisk.settings import Tolerance

caches = typer.Typer(
    name="caches",
    help="Learned caches, which answer easy inputs early: train them, show them.",
    no_args_is_help=True,
)

NOTHING_WRITTEN = 3
"""Exit status."""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


@caches.command()
def train(
    model: ModelArgument,
    data: Annotated[
        Path,
        typer.Option(
            help="Inputs like those that will be served: a .npz with an array for each input and "
            "perhaps `labels`, a folder of such files, or a folder of images."
        ),
    ],
    accuracy: Annotated[
        float, typer.Option(help="Share of early answers that the model itself would give.")
    ] = 0.97,
    confidence: Annotated[
        float, typer.Option(help="With which that is proved on held-out data.")
    ] = 0.95,
    memory_budget: Annotated[
        str | None, typer.Option(help="Of all caches together: bytes, or 500k, 64M, 1G.")
    ] = None,
    miss_cost: Annotated[
        float,
        typer.Option(
            help="Share of the model's time by which an input that all caches miss may be late, "
            "where caches can keep to it; 1: the mean alone counts."
        ),
    ] = 0.02,
    fit_data: Annotated[
        Path | None,
        typer.Option(help="More inputs to fit the caches on; they need not be like the served."),
    ] = None,
    variants: Annotated[
        str | None, typer.Option(help="Only these, separated by ';', as `Pool(4096);Conv(3,1)`.")
    ] = None,
    points: Annotated[int, typer.Option(help="Most exit points to explore.")] = 8,
    judges: Annotated[
        str,
        typer.Option(
            help="What may decide about answers: `gated`, or `all`, what strange inputs pass, too."
        ),
    ] = "gated",
    look_ups: Annotated[
        str,
        typer.Option(help="asynchronous, synchronous, or automatic: what is faster on average."),
    ] = "automatic",
    output: Annotated[
        str | None, typer.Option(help="The value with the class scores; found unless given.")
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(
            help="Of a model whose output is no class scores: which values count as its own, as "
            "`cosine 0.99` or `absolute 0.01`."
        ),
    ] = None,
    version: VersionOption = None,
    jobs: Annotated[
        int | None, typer.Option(help="Caches trained at once; as many as cores unless given.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of the model while it is measured.")] = 1,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    scale: Annotated[float, typer.Option(help="Images: what pixels are divided by.")] = 1.0,
    mean: Annotated[str, typer.Option(help="Images: subtracted then, by channel.")] = "0",
    deviation: Annotated[str, typer.Option(help="Images: divided by then, by channel.")] = "1",
    keep_data: Annotated[
        bool,
        typer.Option(
            help="Keep some of the data beside the caches, readable by its owner only: without it "
            "they cannot learn from the traffic."
        ),
    ] = True,
) -> None:
    """Explore, compose and calibrate caches; write `model.caches` beside `model.onnx`.

    An interrupted training goes on where it was. Without gain or proof nothing is written, and the
    exit status is 3.
    """
    from rich.console import Console

    from brisk.cli.views.caches import RichProgress, bars, print_exploration, print_outcome
    from brisk.exits.adaptation.reference import write_reference
    from brisk.exits.cascade import INT8
    from brisk.exits.cascade_file import write_cascade
    from brisk.exits.data.reading import ImageForm, read_samples
    from brisk.exits.data.samples import divide
    from brisk.exits.exploration import ExplorationSettings, explore, explore_whole
    from brisk.exits.exploration.settings import LookUps
    from brisk.exits.files.versions import caches_file, reference_file
    from brisk.exits.heads.lookup_model import GATED, OF_CLASSES
    from brisk.exits.heads.predictors import CATALOGUE, variant
    from brisk.exits.model_graph import can_have_caches, read_graph
    from brisk.exits.scores import find_scores, find_values

    for name, share in (("accuracy", accuracy), ("confidence", confidence)):
        _check(name, share, 0.5 <= share < 1, "from 0.5 to below 1")
    _check("miss-cost", miss_cost, 0 < miss_cost <= 1, "above 0, at most 1")
    for name, number in (("points", points), ("threads", threads), ("jobs", jobs)):
        _check(name, number, number is None or number >= 1, "at least 1")
    ways = [way.value for way in LookUps]
    if look_ups not in ways:
        raise InvalidConfigurationError(
            f"--look-ups must be one of {', '.join(ways)}, not '{look_ups}'"
        )
    if judges not in ("gated", "all"):
        raise InvalidConfigurationError(f"--judges must be gated or all, not '{judges}'")
    names = [name.strip() for name in variants.split(";")] if variants else None
    known = *(one.name for one in CATALOGUE), INT8
    chosen = tuple(name if name == INT8 else variant(name).name for name in names or known)
    settings = ExplorationSettings(
        accuracy=accuracy,
        confidence=confidence,
        miss_cost=None if miss_cost == 1 else miss_cost,
        memory_budget_bytes=None if memory_budget is None else _bytes(memory_budget),
        points=points,
        variants=chosen,
        jobs=jobs or len(os.sched_getaffinity(0)),
        threads=threads,
        seed=seed,
        output=output,
        look_ups=LookUps(look_ups),
        judges=GATED if judges == "gated" else OF_CLASSES,
    )
    file = model_file(model, version)
    graph = read_graph(file)
    tolerated = None if tolerance is None else _tolerance(tolerance, output)
    # refused before any data is read
    scores = find_scores(graph, output) if tolerated is None else find_values(graph, tolerated)
    is_whole = tolerated is not None or not can_have_caches(graph, scores.position)
    form = ImageForm(scale, _numbers("mean", mean), _numbers("deviation", deviation))
    samples = read_samples(data, graph, form)
    more = None if fit_data is None else read_samples(fit_data, graph, form)
    division = divide(samples, seed, more)
    _check_proof(division, settings.promise)
    folder = _work_folder(file, samples, more, seed)
    console = Console(soft_wrap=True, highlight=False)
    cascade: Cascade | None
    with bars(console) as drawn:
        if is_whole:
            whole = explore_whole(file, samples, tolerated, settings, RichProgress(drawn))
            cascade, reason, verification = whole.cascade, whole.reason, whole.verification
        else:
            found = explore(file, samples, folder, settings, more, RichProgress(drawn))
            cascade, reason, verification = found.cascade, found.reason, found.verification
    if not is_whole:
        print_exploration(console, found)
    print_outcome(console, cascade, verification)
    target = caches_file(file)
    if cascade is None:
        console.print(f"no caches were written: {reason}", style="yellow", markup=False)
    else:
        write_cascade(target, cascade)
        console.print(f"written: {target}", markup=False)
        reference = reference_file(file)
        reference.unlink(missing_ok=True)
        if keep_data and not is_whole:
            write_reference(reference, cascade.model_digest, samples, division, more)
            console.print(f"written: {reference}", markup=False)
    shutil.rmtree(folder)
    if cascade is None:
        raise typer.Exit(NOTHING_WRITTEN)


@caches.command()
def show(
    model: ModelArgument,
    version: VersionOption = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Measure with the kept data; draw the distribution of latencies, and agreement "
            "against latency, into this folder."
        ),
    ] = None,
) -> None:
    """Show a model's caches: exits, hit rates, bounds, memory, and what a server made of them."""
    from rich.console import Console

    from brisk.cli.views.caches import draw_caches, print_cascade, print_live_figures
    from brisk.exits.files.versions import latest, trained_file

    file = model_file(model, version)
    path = trained_file(file)
    if not path.exists():
        raise InvalidModelError(
            f"'{file}' has no caches; `brisk caches train {model} --data DATA` makes them"
        )
    cascade = _read(file, path)
    console = Console(soft_wrap=True, highlight=False)
    print_cascade(console, cascade)
    versions = {"caches": cascade}
    adapted = latest(file)
    if adapted != path:
        try:
            learned = _read(file, adapted)
            console.print("adapted to the traffic, and served instead:", style="bold")
            print_cascade(console, learned)
            versions["adapted"] = learned
        except InvalidModelError as error:
            console.print(str(error), markup=False)
    print_live_figures(console, file)
    if plot is not None:
        console.print(f"drawn: {draw_caches(file, versions, plot)}", markup=False)


@caches.command()
def export(
    model: ModelArgument,
    folder: Annotated[Path, typer.Argument(help="Where to write them.", show_default=False)],
    version: VersionOption = None,
) -> None:
    """Write each cache's look-up as an ONNX file, to be looked at."""
    from brisk.exits.files.versions import latest

    file = model_file(model, version)
    path = latest(file)
    if not path.exists():
        raise InvalidModelError(f"'{file}' has no caches")
    cascade = _read(file, path)
    folder.mkdir(parents=True, exist_ok=True)
    for exit_ in cascade.exits:
        target = folder / f"{exit_.name}.onnx"
        target.write_bytes(exit_.model)
        typer.echo(f"written: {target} (reads '{exit_.point.value}')")


def _read(file: Path, path: Path) -> Cascade:
    """The caches at ``path`` of the model ``file``. Raises InvalidModelError."""
    from brisk.exits.cascade_file import digest_of, read_cascade
    from brisk.exits.files.container import DamagedFileError

    try:
        return read_cascade(path, digest_of(file))
    except (DamagedFileError, OSError) as error:
        raise InvalidModelError(f"'{path}' is ignored by the server: {error}") from error


def _tolerance(text: str, output: str | None) -> Tolerance:
    from brisk.settings import tolerance

    if output is not None:
        raise InvalidConfigurationError("--output names class scores, --tolerance is of others")
    try:
        return tolerance(text)
    except ValueError as error:
        raise InvalidConfigurationError(f"--tolerance {error}, not '{text}'") from None


def _check_proof(division: Division, promise: Promise) -> None:
    """Raises InvalidRequestError where no training can prove the promise on so few inputs."""
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


def _check(name: str, value: float | None, fits: bool, expected: str) -> None:
    if value is not None and not fits:
        raise InvalidConfigurationError(f"--{name} must be {expected}, not {value}")


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([kmg]?)b?", text.strip().lower())
    if found is None:
        raise InvalidConfigurationError(
            f"--memory-budget must be bytes, as 500000, 500k, 64M or 1G, not '{text}'"
        )
    return int(found[1]) * _UNITS[found[2]]


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidConfigurationError(
            f"--{name} must be numbers separated by commas, not '{text}'"
        ) from None


def _work_folder(file: Path, samples: Samples, more: Samples | None, seed: int) -> Path:
    """Of this model, these samples and this seed: what an interrupted training has left is there.

    Mode 0700: samples may be private.
    """
    import hashlib

    from brisk.exits.cascade_file import digest_of
    from brisk.exits.files.versions import training_folder

    digest = hashlib.sha256(f"{digest_of(file)} {seed}".encode())
    for part in (samples, more):
        for name, array in sorted(part.inputs.items()) if part is not None else ():
            digest.update(name.encode() + array.tobytes())
    folder = training_folder(digest.hexdigest()[:32])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
