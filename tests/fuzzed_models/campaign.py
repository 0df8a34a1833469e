"""Many mutations, one after the other."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fuzzed_models.mutations import mutate
from fuzzed_models.seeds import EXTERNAL_BYTES, EXTERNAL_FILE, seed_models
from fuzzed_models.trials import FORBIDDEN, Outcome, try_model


@dataclass(frozen=True, slots=True)
class Trial:
    """``words``: what was done to which model."""

    number: int
    words: str
    outcome: Outcome


def run_campaign(
    numbers: Iterable[int], folder: Path, keep: Path | None = None
) -> Iterator[Trial]:
    """Every odd number's model is cut wherever it can be. ``folder``: where models are put."""
    seeds = seed_models()
    path = folder / "model.onnx"
    values = np.random.default_rng(0).standard_normal(EXTERNAL_BYTES // 4).astype("f4")
    (folder / EXTERNAL_FILE).write_bytes(values.tobytes())
    for number in numbers:
        words, data = mutate(seeds, number)
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        outcome = try_model(path, cut=bool(number % 2))
        if keep is not None and (outcome.kind in FORBIDDEN or "died" in outcome.kind.value):
            keep.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, keep / f"{number}.onnx")
        yield Trial(number, words, outcome)
