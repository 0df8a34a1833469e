"""A model with its caches and without, measured here and drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from brisk.errors import InvalidConfigurationError, InvalidModelError
from brisk.exits.adaptation.reference import read_reference, reference_file
from brisk.exits.cascade import Cascade
from brisk.exits.files.container import DamagedFileError

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
        from brisk_client.benchmarks.exits.plots import plot_sides
        from brisk_client.benchmarks.exits.runs import ExitBench, Version
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
