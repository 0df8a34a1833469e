"""Texts on early answers that are learned from an entry's traffic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brisk.errors import BriskError
from brisk.exits.files.learning_record import (
    TRY_CONFIDENCE,
    Aim,
    LearningRecord,
    Stage,
    collected,
    read_record,
    rows_wanted,
    samples_limit_bytes,
)
from brisk.stub.config.field_support import keeps_answers
from brisk.stub.config.parameters import Parameters, needs_classes, parse_parameters
from brisk.stub.config.session_tuning import TAKEN
from brisk.view.entry_text import written_config


def aim_of(file: Path, config: Mapping[str, Any], said: Parameters) -> Aim | None:
    """Return what an entry asks to be learned for its model ``file``; None if nothing.

    ``said``: its parameters.

    A model with states learns nothing, since caches do not compute them, and neither does one
    whose answers Triton's response cache keeps.
    """
    has_states = bool((config.get("sequence_batching") or {}).get("state"))
    if not said.accuracy_ppm or has_states or keeps_answers(config):
        return None
    asked = said.accuracy_ppm / 1e6, said.tolerance, said.smaller_model
    return Aim.of(file, *asked, needs_classes=needs_classes(said, config))


def read_aim(entry: Path, file: Path) -> Aim | None:
    """Return ``aim_of`` the entry in a directory. Raises InvalidConfigurationError."""
    config = written_config(entry)
    return aim_of(file, config, parse_parameters(config.get("parameters", {}), TAKEN))


def present_record(file: Path, aim: Aim | None) -> LearningRecord | None:
    """Return the record of learning for the model ``file`` as it is now, and for ``aim``, unless
    that is None; None if there is none."""
    record = read_record(file)
    if record is None:
        return None
    return record if record.is_for(aim or record.aim.at_present(file)) else None


def unfit_text(file: Path, aim: Aim) -> str:
    """Return a text on why nothing can be learned for the model ``file``, as a server finds it;
    empty if something can. What was learned already does not count."""
    from brisk.runtime.early_exit.learning_process import look_at  # which is long to import

    try:
        record = look_at(file, aim)
    except BriskError as error:
        return f"not known: {error}"
    return record.words(0) if record.stage is Stage.UNFIT else ""


def learning_text(file: Path, aim: Aim | None) -> str:
    """Return a text on what was learned for the model ``file``; empty if nothing is to be, and
    nothing was. ``aim``: what its entry asks for now."""
    record = present_record(file, aim)
    rows, size = collected(file)
    if aim is not None and record is None:  # no server has looked at it
        if unfit := unfit_text(file, aim):
            return unfit
        wanted = rows_wanted(aim.accuracy, TRY_CONFIDENCE)
        return (
            f"brisk_accuracy {aim.accuracy:g} is learned from the traffic: "
            f"{rows:,} of {wanted:,} samples are there"
        )
    return "" if record is None else record.progress(rows, size, samples_limit_bytes())
