"""What a model's caches do in the runtime that serves it, if one does."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from brisk.cli.status.text import exits_table
from brisk.errors import BriskError
from brisk.observer import observe_all
from brisk.protocol.host.runtime_paths import runtime_place
from brisk.protocol.records import ModelStatus


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
