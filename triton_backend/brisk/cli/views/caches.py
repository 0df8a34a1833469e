"""The display of learned caches: as explored, as written, and as a runtime serves them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich import progress
from rich.console import Console
from rich.table import Table

from brisk.cli.views.status import exits_table
from brisk.errors import BriskError, InvalidConfigurationError, InvalidModelError
from brisk.exits.adaptation.reference import read_reference
from brisk.exits.cascade import Cascade, way
from brisk.exits.exploration import Exploration, Progress
from brisk.exits.exploration.measuring import Verification
from brisk.exits.files.container import DamagedFileError
from brisk.exits.files.versions import reference_file
from brisk.exits.guarantee.calibration import lower_bound, upper_bound
from brisk.paths import version_folder
from brisk.protocol.runtime_paths import runtime_place
from brisk.protocol.status import ModelStatus
from brisk.telemetry.observer import observe_all

if TYPE_CHECKING:
    from brisk_bench.exits.runs import Version


def bars(console: Console) -> progress.Progress:
    """Return the progress display that ``RichProgress`` draws into."""
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        console=console,
    )


class RichProgress(Progress):
    """A progress display with a bar for each stage of an exploration."""

    def __init__(self, drawn: progress.Progress) -> None:
        self._bars = drawn
        self._stage = drawn.add_task("", total=None, visible=False)

    def stage(self, name: str, total: int) -> None:
        self._stage = self._bars.add_task(name, total=total)

    def advance(self, units: int = 1) -> None:
        self._bars.advance(self._stage, units)


def print_exploration(console: Console, found: Exploration) -> None:
    """Print a table of every explored variant with its measurements."""
    table = Table(title="explored caches; chosen ones are marked")
    for column in ("", "nodes done", "variant", "hit rate", "accuracy", "evaluation", "memory"):
        table.add_column(column, justify="left" if column in ("", "variant") else "right")
    for index, one in enumerate(found.problem.candidates):
        table.add_row(
            "*" if index in found.chosen else "",
            str(found.studied.points[one.point].position),
            way(one.variant, one.judge),
            f"{one.hit_rate:.1%}",
            f"{one.accuracy:.2%}",
            f"{(one.evaluation_s or one.overhead_s) * 1e6:.0f} µs",
            f"{one.memory_bytes / 1e6:.2f} MB",
        )
    console.print(table)
    if found.skipped:
        console.print(
            f"{found.skipped} further variants do not fit their point or the memory budget, or "
            "their evaluation alone would outlast the model; they were not trained"
        )
    if found.label_agreement is not None:
        console.print(f"the model's own accuracy on the data: {found.label_agreement:.2%}")


def print_outcome(
    console: Console, cascade: Cascade | None, verification: Verification | None
) -> None:
    """Print the outcome of an exploration: the chosen caches and their measured gain."""
    if cascade is not None:
        print_cascade(console, cascade)
    if verification is not None:
        ours, theirs = verification.cascade_s, verification.base_s
        console.print(
            f"measured on samples, in turns: {theirs * 1e3:.2f} ms without caches, "
            f"{ours * 1e3:.2f} ms with ({theirs / ours:.2f} times as fast)"
        )
        if cascade is not None:
            level = zip(cascade.exits, cascade.levels[0].thresholds, strict=True)
            late_s = sum(
                exit_.overhead_s for exit_, threshold in level if math.isfinite(threshold)
            )
            console.print(f"an input that every cache misses takes {late_s / theirs:.1%} longer")


def print_cascade(console: Console, cascade: Cascade) -> None:
    """Print the exits of each level, and what held-out data proves of each and of all together."""
    mode = "in the model's own thread" if cascade.synchronous else "by a thread of their own"
    gain = cascade.expected.base_s / cascade.expected.mean_s
    console.print(
        f"revision {cascade.revision}, exits evaluated {mode}; expected "
        f"{cascade.expected.mean_s * 1e3:.2f} ms on average instead of "
        f"{cascade.expected.base_s * 1e3:.2f} ms ({gain:.2f} times as fast)",
        markup=False,
    )
    tolerance = cascade.scores.tolerance
    within = "" if tolerance is None else f" within {tolerance}"
    for level in cascade.levels:
        table = Table(
            title=f"promise {level.accuracy:.1%}{within}, proved with {cascade.confidence:.0%} "
            "confidence"
        )
        for column in ("exit", "answers", "agrees", "at least", "evaluation", "memory"):
            is_name = column == "exit"
            table.add_column(column, justify="left" if is_name else "right", no_wrap=is_name)
        for exit_, threshold, count in zip(
            cascade.exits, level.thresholds, level.count.exits, strict=True
        ):
            if math.isinf(threshold):
                table.add_row(exit_.name, "off", "", "", "", "")
                continue
            proved = lower_bound(count.right, count.answered, cascade.confidence)
            table.add_row(
                exit_.name,
                f"{count.answered / max(level.count.inputs, 1):.1%}",
                f"{count.right / max(count.answered, 1):.2%}",
                f"{proved:.2%}",
                f"{exit_.evaluation_s * 1e6:.0f} µs",
                f"{exit_.memory_bytes / 1e6:.2f} MB",
            )
        console.print(table)
        wrong = upper_bound(level.count.wrong_anywhere, level.count.inputs, cascade.confidence)
        console.print(
            f"of {level.count.inputs} held-out inputs {level.count.wrong_anywhere} would be "
            f"answered otherwise by any exit: at most {wrong:.2%}",
            markup=False,
        )


def draw_caches(model_file: Path, cascades: Mapping[str, Cascade], folder: Path) -> Path:
    """Measure the bare model and each of ``cascades`` at every promise, interleaved, on the inputs
    that proved the caches; return the path of the picture.

    Its left half has the CDF of latencies, its right half agreement against the mean latency.
    Raises InvalidModelError if no data was kept, InvalidConfigurationError if the client's
    package, which measures and draws, is not installed.
    """
    try:
        from brisk_bench.exits.runs import ExitBench, Version, plot_sides
    except ImportError as error:
        raise InvalidConfigurationError(f"--plot needs the client's package: {error}") from error
    path = reference_file(model_file)
    digest = next(iter(cascades.values())).model_digest
    try:
        inputs = read_reference(path, digest).held_out
    except FileNotFoundError:
        raise InvalidModelError(
            f"'{path}' is not there: --plot measures with the data that `brisk caches train` "
            "keeps unless --no-keep-data is given"
        ) from None
    except DamagedFileError as error:
        raise InvalidModelError(f"'{path}': {error}") from error
    versions: dict[str, Version] = {
        f"{name}, {level.accuracy:.1%}": Version(cascade, cascade.synchronous, level.accuracy)
        for name, cascade in cascades.items()
        for level in cascade.levels
    }
    bench = ExitBench(model_file)
    try:
        sides = bench.measure(versions, inputs, 1, quick=True)
    finally:
        bench.close()
    return plot_sides(version_folder(model_file).parent.name or model_file.stem, sides, folder)


# Figures of a model's caches from the runtime that serves it, if there is one.


def print_live_figures(console: Console, model_file: Path) -> None:
    """Print figures of the CPU's runtime under ``$BRISK_RUNTIME_DIR``; one line if it does not
    serve the caches."""
    try:
        served = _served(model_file)
    except BriskError as error:
        console.print(f"no live figures: {error}", markup=False)
        return
    if not any(model.exits for model in served):
        state = "has not read these caches" if served else "does not serve this model"
        console.print(f"no live figures: the runtime {state}", markup=False)
        return
    console.print(exits_table(served))
    rows = sum(model.offered_rows for model in served)
    console.print(f"of {rows} rows that could have been answered early", markup=False)


def _served(model_file: Path) -> list[ModelStatus]:
    """Return each worker's status of the model. Raises UnavailableError if no runtime answers."""
    served = []
    for observer in observe_all(runtime_place("cpu")):
        with observer:
            models = observer.status().models
        served += [model for model in models if _is_same(model.path, model_file)]
    return served


def _is_same(path_end: str, model_file: Path) -> bool:
    """Whether both are the same file. ``path_end``: a path, of which a record may hold only the
    end."""
    return os.path.realpath(model_file).endswith(path_end) or (
        os.path.exists(path_end) and os.path.samefile(path_end, model_file)
    )
