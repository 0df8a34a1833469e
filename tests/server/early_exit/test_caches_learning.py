"""Caches that learn while a real Triton serves them: samples, trials, swaps, roll-back."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import math
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from brisk.exits.cascade import Cascade
from brisk.exits.cascade_file import digest_of, read_cascade, write_cascade
from brisk.exits.files import versions
from brisk.exits.files.versions import caches_file, reference_file
from brisk.exits.learning.exporting import export_head, network_of
from brisk.exits.learning.predictor import last_layer
from brisk.triton.locate import ServerInstallation
from support.exits.adapted import Adapted
from support.runtime.runtime_processes import processes_started_in
from support.server.entries import write_entry
from support.server.learning_loop import Loop, wait_until
from support.server.running import running_server, runtime_directory
from support.server.scraping import value, wait_for
from support.waiting import TIMED

pytestmark = [pytest.mark.server, pytest.mark.timing]

INTERVAL_S = 2
MOST_DIFFERING = 0.05
"""Of all rows: what the caches of ``Adapted`` promise of those that they answer."""

MODELS = ("drifting", "poisoned")
CONFIG = (
    'backend: "brisk" max_batch_size: 8 '
    'input [ { name: "image" data_type: TYPE_FP32 dims: [ 1, 8, 8 ] } ] '
    'output [ { name: "logits" data_type: TYPE_FP32 dims: [ 10 ] }, '
    '{ name: "digit" data_type: TYPE_INT64 dims: [ 1 ] } ] '
)


@pytest.fixture(scope="module")
def loop(
    tmp_path_factory: pytest.TempPathFactory,
    installation: ServerInstallation,
    backends: Path,
    adapted: Adapted,
) -> Iterator[Loop]:
    folder = tmp_path_factory.mktemp("learning")
    repository, cache, log = folder / "repository", folder / "cache", folder / "log"
    for name in MODELS:
        entry = write_entry(repository, name, adapted.model_file.read_bytes(), CONFIG)
        for made in (caches_file, reference_file):
            shutil.copy(made(adapted.model_file), entry / "1")
    cache.mkdir()
    environment = {
        "BRISK_CACHE_DIR": str(cache),
        "BRISK_SAMPLED_SHARE": "0.5",
        "BRISK_ADAPTATION_S": str(INTERVAL_S),
        "BRISK_METRICS_INTERVAL_S": "0.5",
    }
    with (
        pytest.MonkeyPatch.context() as patched,
        running_server(installation, repository, backends, log, environment=environment) as server,
    ):
        patched.setenv("BRISK_CACHE_DIR", str(cache))  # the test looks where the runtime does
        made_loop = Loop(server, adapted, repository, log)
        with TIMED:
            wait_until(
                made_loop,
                lambda: all(made_loop.status(name).exits for name in MODELS),
                "all caches",
            )
        yield made_loop


def with_thresholds(cascade: Cascade, thresholds: tuple[float, ...], revision: int) -> Cascade:
    (level, *stricter) = cascade.levels
    levels = (dataclasses.replace(level, thresholds=thresholds), *stricter)
    return dataclasses.replace(cascade, levels=levels, revision=revision, repairs=False)


def learner_of(loop: Loop) -> int:
    """The process that learns."""
    for process in processes_started_in(runtime_directory(loop.server)):
        with contextlib.suppress(OSError):
            if b"adaptation_process" in Path(f"/proc/{process}/cmdline").read_bytes():
                return process
    raise LookupError("nothing learns")


class _Pipe:
    """Where a file is about to be written: the writer comes as far as a pipe's buffer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader: int | None = None

    def __enter__(self) -> _Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            os.close(self._reader)

    def has_come(self) -> bool:
        """Whether anything has been written; a learner that starts removes the pipe at first."""
        if not self._path.exists():
            os.mkfifo(self._path)
            self.__exit__()
            self._reader = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        assert self._reader is not None
        with contextlib.suppress(BlockingIOError):
            return bool(os.read(self._reader, 1))
        return False


def test_a_learner_killed_while_it_publishes_is_replaced_and_the_next_one_is_served(
    loop: Loop,
) -> None:
    """From the first sample to the swap, with answers that keep the promise all along."""
    model = loop.file("drifting")
    images = loop.adapted.drifted()
    candidate = versions.candidate_file(model)
    versions.make_private_folder(model)
    with loop.streaming("drifting", images) as stream:
        with TIMED:
            wait_until(loop, lambda: any(versions.samples_folder(model).glob("*.npz")), "a sample")

        def is_learning() -> bool:
            with contextlib.suppress(LookupError):
                return bool(learner_of(loop))
            return False

        with TIMED:
            wait_until(loop, is_learning, "a learner")
        first = learner_of(loop)
        pipe = candidate.with_name(f".{candidate.name}.{first}.unfinished")
        with _Pipe(pipe) as half:  # it can write no further than the pipe takes
            with TIMED:
                wait_until(loop, half.has_come, "a candidate half written")
            os.kill(first, signal.SIGKILL)
        assert not candidate.exists()
        assert loop.status("drifting").revision == 0
        with TIMED:
            wait_until(loop, lambda: loop.status("drifting").revision >= 1, "a promoted version")
        assert learner_of(loop) != first
        assert not pipe.exists(), "what the first one left is gone"
        with TIMED:
            wait_until(loop, lambda: versions.adapted_file(model).exists(), "its file")
        assert not candidate.exists()
        before = loop.status("drifting")
        rows = stream.rows
        wait_until(loop, lambda: stream.rows >= rows + 500, "more requests")
        after = loop.status("drifting")
    gained = after.offered_rows - before.offered_rows
    early = sum(one.answered for one in after.exits) - sum(one.answered for one in before.exits)
    assert versions.adapted_file(model).stat().st_mode & 0o777 == 0o600
    assert early > 0.3 * gained, "traffic that none of the first version's exits knew"
    assert stream.differing <= MOST_DIFFERING * stream.rows, (
        "5 % are promised, of those answered early"
    )
    wait_for(
        loop.server,
        lambda found: (
            value(found, "brisk_cache_versions_total", model="drifting", change="promoted") >= 1
            and value(found, "brisk_early_answers_total", model="drifting", version="1") > 0
        ),
    )


def test_a_candidate_that_breaks_the_promise_is_found_out_by_the_audit(loop: Loop) -> None:
    """It saves most, because it answers everything at its first exit; a half of it wrong."""
    model = loop.file("drifting")
    served = read_cascade(versions.latest(model), digest_of(model))
    original = caches_file(loop.adapted.model_file)  # read anew: other tests have `adapted`, too
    first, *rest = read_cascade(original, digest_of(model)).exits
    network = copy.deepcopy(network_of(first))
    last = last_layer(network.predictor)
    torch.manual_seed(0)
    with torch.no_grad():
        last.weight.copy_(torch.randn_like(last.weight))
        network.gate.limit.fill_(math.inf)
        network.floor.zero_()
    first = dataclasses.replace(first, model=export_head(network, first.shape))
    wrong = dataclasses.replace(served, exits=(first, *rest))
    wrong = with_thresholds(wrong, (1e-12, *(math.inf for _ in rest)), served.revision + 90)
    with loop.streaming("drifting", loop.adapted.drifted()):
        with TIMED:
            wait_until(
                loop,
                lambda: not versions.candidate_file(model).exists(),
                "the end of another trial",
            )
        write_cascade(versions.candidate_file(model), wrong)
        name = f"revision {wrong.revision}, are "
        with TIMED:
            wait_until(
                loop,
                lambda: any(
                    f"{name}{end}: its promise is refuted" in loop.log.read_text()
                    for end in ("rejected", "rolled back")
                ),
                "its end",
            )
            wait_until(
                loop, lambda: loop.status("drifting").revision != wrong.revision, "the one before"
            )
            wait_until(loop, lambda: versions.latest(model).exists(), "its file")
    with loop.streaming("drifting", loop.adapted.drifted()) as stream:
        wait_until(loop, lambda: stream.rows > 300, "requests")
    assert stream.differing <= MOST_DIFFERING * stream.rows
    wait_for(
        loop.server,
        lambda found: value(found, "brisk_switched_off_exits_total", model="drifting") >= 1,
    )


def test_poisoned_traffic_is_refused(loop: Loop) -> None:
    """Poison are pictures between two classes, with noise: near the model's own boundary nothing
    is sure."""
    random = np.random.default_rng(0)
    images = loop.adapted.images
    pairs = zip(random.permutation(images), random.permutation(images), strict=True)
    blended = np.stack([one / 2 + other / 2 for one, other in itertools.islice(pairs, 700)])
    poison = (blended + random.normal(0, 4, blended.shape)).astype(np.float32)
    poison[::50] = np.nan
    poison[1::50] = np.inf
    numbers = poison[np.isfinite(poison).all((1, 2, 3))]
    model = loop.file("poisoned")
    refusal = f"caches of {model} learned nothing better: accuracy 95.00% cannot be proved"
    with loop.streaming("poisoned", numbers), loop.streaming("poisoned", poison), TIMED:
        wait_until(loop, lambda: refusal in loop.log.read_text(), "a refusal")
    assert loop.status("poisoned").revision == 0
    assert versions.latest(model) == caches_file(model)
    with loop.streaming("poisoned", loop.adapted.images) as stream:
        wait_until(loop, lambda: stream.rows > 300, "ordinary requests")
    assert stream.differing <= MOST_DIFFERING * stream.rows
