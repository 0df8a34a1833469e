"""Samples in, candidates out: what learns beside the workers, and when it does not."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from brisk.exits.adaptation.adapter import Adapter
from brisk.exits.adaptation.retraining import AdaptationSettings
from brisk.exits.cascade_file import digest_of, read_cascade, write_cascade
from brisk.exits.data.samples import Samples
from brisk.exits.files.container import digest_at_end
from brisk.exits.files.versions import caches_file, candidate_file, reference_file
from brisk.runtime.early_exit.adaptation import Adaptation
from brisk.runtime.early_exit.adaptation_process import open_learner
from brisk.runtime.early_exit.sampling import write_samples
from support.exits.adapted import Adapted
from support.runtime.runtime_processes import hurry

PATIENCE_S = 240
"""The process runs on what other processes leave."""


@pytest.fixture
def model(adapted: Adapted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the model with its caches and reference; no samples yet."""
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / adapted.model_file.name
    for source in (adapted.model_file, caches_file(adapted.model_file)):
        shutil.copy(source, tmp_path)
    shutil.copy(reference_file(adapted.model_file), tmp_path)
    return file


def sample(model: Path, images: np.ndarray) -> None:
    write_samples(model, [{"image": images}])


def test_a_better_version_is_published_for_trial_and_nothing_more_until_that_is_over(
    adapted: Adapted, model: Path
) -> None:
    learner = open_learner(model)
    assert learner is not None
    assert not learner.learn(time.time()), "there are no samples"
    sample(model, adapted.drifted()[:10])
    assert not learner.learn(time.time()), "ten samples are too few"
    sample(model, adapted.drifted())
    assert learner.learn(time.time())
    published = read_cascade(candidate_file(model), digest_of(model))
    assert published.revision == 1
    assert published.trained_digest == digest_at_end(caches_file(model))
    sample(model, adapted.drifted((4, 5)))
    assert not learner.learn(time.time()), "the first is on trial"
    candidate_file(model).unlink()  # the runtime has rejected it
    sample(model, adapted.drifted((4, 6)))
    assert learner.learn(time.time())
    assert read_cascade(candidate_file(model), digest_of(model)).revision == 1


def test_a_rejected_version_is_left_behind_where_another_file_waits_for_its_load(
    adapted: Adapted, model: Path
) -> None:
    """The loaded model goes on, and is not read again whenever caches learn."""
    learner = open_learner(model)
    assert learner is not None
    sample(model, adapted.drifted())
    assert learner.learn(time.time())
    candidate_file(model).unlink()  # the runtime has rejected it
    other = model.with_suffix(".new")
    other.write_bytes(b"another model")
    other.rename(model)
    sample(model, adapted.drifted((4, 6)))
    assert learner.learn(time.time())
    assert read_cascade(candidate_file(model), None).revision == 1


def test_what_was_learned_from_caches_that_were_trained_anew_meanwhile_is_not_tried(
    adapted: Adapted, model: Path
) -> None:
    """It would be newer than those, and could take their place: a copy keeps its time."""
    learner = open_learner(model)
    assert learner is not None
    sample(model, adapted.drifted())
    trained = caches_file(model)
    before_ns = trained.stat().st_mtime_ns
    anew = dataclasses.replace(read_cascade(trained, digest_of(model)), confidence=0.8)
    write_cascade(trained, anew)
    os.utime(trained, ns=(before_ns, before_ns))
    assert not learner.learn(time.time())
    assert not candidate_file(model).exists()


def test_training_data_that_the_model_answers_with_nan_do_not_end_learning(
    adapted: Adapted,
) -> None:
    images = adapted.reference.fit.inputs["image"].copy()
    images[::9, 0, 3, 3] = math.nan
    reference = dataclasses.replace(adapted.reference, fit=Samples({"image": images}))
    adapter = Adapter(adapted.base, adapted.cascade, reference, AdaptationSettings())
    adapter.take({"image": adapted.drifted()}, 0.0)
    outcome = adapter.adapt(1.0)
    assert outcome.cascade is not None, outcome.reason


def test_damaged_samples_are_left_out(
    adapted: Adapted, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learner = open_learner(model)
    assert learner is not None
    sample(model, adapted.drifted())
    (samples,) = candidate_file(model).parent.glob("samples/*.npz")
    samples.write_bytes(samples.read_bytes()[:100])
    assert not learner.learn(time.time())
    assert "are left out" in caplog.text


def test_caches_without_data_of_their_training_do_not_learn(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference_file(model).unlink()
    caplog.set_level(logging.INFO, "brisk")
    assert open_learner(model) is None
    assert "no data of their training" in caplog.text


def test_the_process_publishes_and_is_started_again_when_it_was_killed(
    adapted: Adapted, model: Path
) -> None:
    adaptation = Adaptation(0.2)
    adaptation.look([model])
    assert adaptation.process_id is None, "there is nothing to learn from"
    sample(model, adapted.drifted())
    adaptation.look([model])
    first = adaptation.process_id
    assert first is not None
    with contextlib.ExitStack() as at_the_end:
        at_the_end.callback(adaptation.end)
        os.kill(first, signal.SIGKILL)
        deadline_s, second, is_aside = time.monotonic() + PATIENCE_S, None, False
        while not candidate_file(model).exists():
            assert time.monotonic() < deadline_s, "no candidate"
            adaptation.look([model])
            time.sleep(0.1)
            if (second := adaptation.process_id) not in (None, first):
                is_aside = is_aside or os.sched_getscheduler(second) == os.SCHED_IDLE
                hurry([second])
        assert second == adaptation.process_id
        assert is_aside, "it gets what processors others leave, but in this test"
        adaptation.look([])
        assert adaptation.process_id is None, "nobody serves the model any more"


def test_where_adaptation_is_off_no_process_is_started(adapted: Adapted, model: Path) -> None:
    sample(model, adapted.drifted())
    adaptation = Adaptation(0.0)
    adaptation.look([model])
    assert adaptation.process_id is None
