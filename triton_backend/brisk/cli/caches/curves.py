"""A model with its caches and without: measured here and drawn, or as a runtime serves it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from brisk.cli.status.text import exits_table
from brisk.errors import BriskError, InvalidConfigurationError, InvalidModelError
from brisk.exits.adaptation.reference import read_reference, reference_file
from brisk.exits.cascade import Cascade
from brisk.exits.files.container import DamagedFileError
from brisk.observer import observe_all
from brisk.protocol.host.runtime_paths import runtime_place
from brisk.protocol.records import ModelStatus

if TYPE_CHECKING:
    from brisk_client.benchmarks.exits.runs import Version


def draw_caches(model_file: Path, cascades: Mapping[str, Cascade], folder: Path) -> Path:
    """Run the inputs that proved the caches through the bare model and each of ``cascades``, in
    turns, at every promise; left in the picture the CDF of latencies, right agreement against
    the mean.

    Raises InvalidModelError where no data was kept, InvalidConfigurationError where the client's
    package, which measures and draws, is not there.
    """
    try:
        from brisk_client.benchmarks.exits.runs import ExitBench, Version, plot_sides
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
    return plot_sides(model_file.parent.parent.name or model_file.stem, sides, folder)


# What a model's caches do in the runtime that serves it, if one does.


def print_live_figures(console: Console, model_file: Path) -> None:
    """Of the CPU's runtime under ``$BRISK_RUNTIME_DIR``; one line where it does not serve them."""
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
    """The model as each worker has it. Raises UnavailableError where no runtime answers."""
    found = []
    for observer in observe_all(runtime_place("cpu")):
        with observer:
            models = observer.status().models
        found += [model for model in models if _is_same(model.path, model_file)]
    return found


def _is_same(told: str, model_file: Path) -> bool:
    """``told`` is the end of a path, cut to what a record holds."""
    return os.path.realpath(model_file).endswith(told) or (
        os.path.exists(told) and os.path.samefile(told, model_file)
    )
