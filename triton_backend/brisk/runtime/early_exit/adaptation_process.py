"""The process that adapts learned caches to the traffic.

``python -m brisk.runtime.early_exit.adaptation_process MODEL…``

It reads the samples that workers write, retrains at an interval, and publishes a better version as
a candidate, which the foreground worker tries (``brisk.exits.files.versions``). It lives as long
as the worker that started it, at the lowest priority. Files are whole wherever it is killed.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path

from brisk.os_priority import step_aside
from brisk.runtime.log import LOGGER, start_logging

# Before the imports of libraries that read the number of threads from the environment.
if __name__ == "__main__" and not step_aside():
    sys.exit(1)

import torch

from brisk.errors import BriskError, InvalidModelError
from brisk.exits.adaptation.adapter import Adapter
from brisk.exits.adaptation.retraining import AdaptationSettings
from brisk.exits.cascade_file import read_cascade, write_cascade
from brisk.exits.files.container import DamagedFileError, digest_at_end
from brisk.exits.files.sample_files import read_samples_file
from brisk.exits.files.versions import candidate_file, latest, samples_folder, trained_file

NANOSECONDS = 1e9
PRIVATE = 0o600
"""The mode of files that may reveal requests."""


def main() -> int:
    """Learn until killed; return exit status 0 if no model's caches can learn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--interval", type=float, required=True, help="seconds")
    arguments = parser.parse_args()
    start_logging()
    torch.set_num_threads(1)
    learners = [learner for model in arguments.models if (learner := open_learner(model))]
    while learners:
        time.sleep(arguments.interval)
        for learner in learners:
            try:
                learner.learn(time.time())
            except Exception as error:  # noqa: BLE001  # other models go on learning
                LOGGER.warning(
                    f"caches of {learner.model} did not learn: {type(error).__name__}: {error}"
                )
    return 0


def open_learner(model: Path) -> Learner | None:
    """Return a learner for ``model``; None if it has no caches, or no training data of them."""
    try:
        adapter = Adapter.open(model, AdaptationSettings())
    except FileNotFoundError:
        adapter = None
    except (BriskError, DamagedFileError, OSError) as error:
        LOGGER.warning(f"caches of {model} cannot learn: {error}")
        return None
    if adapter is None:
        LOGGER.info(
            f"caches of {model} do not learn: there is no data of their training next to them"
        )
        return None
    return Learner(model, adapter)


class Learner:
    """Adapts the caches of one model."""

    def __init__(self, model: Path, adapter: Adapter) -> None:
        """Remove unfinished files of a process that was killed while it published."""
        self.model = model
        self._adapter = adapter
        self._trained_digest = adapter.cascade.trained_digest
        self._newest = ""
        self._was_refused = False
        candidate = candidate_file(model)
        for left in candidate.parent.glob(f".{candidate.name}.*.unfinished"):
            left.unlink(missing_ok=True)

    def learn(self, now_s: float) -> bool:
        """Take in new samples and retrain; return whether a candidate was published.

        Nothing is published while the previous candidate is on trial. ``now_s``: Unix time.
        """
        if not self._take_samples() or candidate_file(self.model).exists():
            return False
        if not self._descends_from_trained():
            return False  # this process ends when the worker looks the next time
        self._follow()
        outcome = self._adapter.adapt(now_s)
        if outcome.cascade is None:
            if not self._was_refused:
                LOGGER.info(f"caches of {self.model} learned nothing better: {outcome.reason}")
            self._was_refused = True
            return False
        self._was_refused = False
        candidate = candidate_file(self.model)
        if candidate.exists():
            return False  # another process has published one meanwhile
        write_cascade(candidate, outcome.cascade, PRIVATE)
        if not self._descends_from_trained():
            candidate.unlink(missing_ok=True)
            return False
        because = f", since {outcome.reason}" if outcome.reason else ""
        before_ms, after_ms = (saved_s * 1e3 for saved_s in outcome.saved_s)
        LOGGER.info(
            f"caches of {self.model}, revision {outcome.cascade.revision}, learned from "
            f"{outcome.samples} samples: {after_ms:.3f} ms saved of a recent input on average, "
            f"{before_ms:.3f} before; they are tried now{because}"
        )
        return True

    def _descends_from_trained(self) -> bool:
        """Whether the caches are still there that the adapter began with, trained by nobody
        since."""
        try:
            return digest_at_end(trained_file(self.model)) == self._trained_digest
        except (FileNotFoundError, InvalidModelError):
            return False

    def _take_samples(self) -> bool:
        """Read the files that are new since the last call; return whether there are any."""
        has_come = False
        for file in sorted(samples_folder(self.model).glob("*.npz")):
            if file.name <= self._newest:
                continue
            self._newest = file.name
            try:
                for inputs in read_samples_file(file):
                    self._adapter.take(inputs, int(file.name[:20]) / NANOSECONDS)
                has_come = True
            except (
                DamagedFileError,
                OSError,
                ValueError,
            ) as error:  # deleted meanwhile, or damaged
                LOGGER.warning(f"samples '{file}' are left out: {error}")
        return has_come

    def _follow(self) -> None:
        """Continue from the served version, so that a rejected candidate is left behind."""
        try:
            served = read_cascade(latest(self.model), self._adapter.cascade.model_digest)
        except (DamagedFileError, OSError) as error:
            LOGGER.warning(f"caches of {self.model} cannot be read: {error}")
            return
        if served.revision != self._adapter.cascade.revision:
            self._adapter.cascade = dataclasses.replace(
                served, trained_digest=self._trained_digest
            )


if __name__ == "__main__":
    sys.exit(main())
