"""New versions of caches in a real runtime: tried, kept or deleted, swapped between requests."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brisk.exits.cascade import Cascade
from brisk.exits.cascade_file import write_cascade
from brisk.exits.files.versions import (
    adapted_file,
    caches_file,
    candidate_file,
    make_private_folder,
    private_folder,
    samples_folder,
)
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.settings import cache_directory
from brisk.stub.runtime_client.client import RuntimeClient
from brisk.telemetry.observer import Observer
from support.exits.exits_model import Model, ask, make_model, taken
from support.runtime.runtime_process import describe, end_processes, opened, quick_model
from support.waiting import wait_until

NEVER = 2.0
"""A threshold that no score reaches."""


@pytest.fixture(autouse=True)
def _cache(place: RuntimePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test looks where the runtime does."""
    monkeypatch.setenv("BRISK_CACHE_DIR", str(place.base.parent / "cache"))


@pytest.fixture(scope="module")
def place() -> Iterator[RuntimePaths]:
    """Of a runtime with a cache directory of its own, which samples everything."""
    parent = Path(tempfile.mkdtemp(prefix="brisk-"))
    compiled = cache_directory() / "native"  # else every run compiles the executor
    compiled.mkdir(parents=True, exist_ok=True)
    (parent / "cache").mkdir()
    (parent / "cache" / "native").symlink_to(compiled.resolve())
    own = RuntimePaths(parent / "runtime", "cpu")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("BRISK_CACHE_DIR", str(parent / "cache"))
        environment.setenv("BRISK_SAMPLED_SHARE", "1")
        environment.setenv("BRISK_THREADS", "1")
        environment.setenv("BRISK_ARTEFACTS", "off")
        with opened(own, describe(quick_model(parent / "quick.onnx"))):  # keeps it alive
            yield own
    end_processes(own)
    shutil.rmtree(parent)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_model(tmp_path_factory.mktemp("versions") / "model.onnx")


@pytest.fixture
def connection(place: RuntimePaths, model: Model) -> Iterator[RuntimeClient]:
    """Of the model with the caches of its training: what another test has learned is not there."""
    shutil.rmtree(private_folder(model.file), ignore_errors=True)
    write_cascade(caches_file(model.file), model.cascade)
    with opened(place, describe(model.file, max_batch_size=64, batching=True)) as made:
        wait_until(lambda: taken(ask(made, model.easy[:1])) == model.name, "an early answer")
        make_private_folder(model.file)
        yield made


def revision(place: RuntimePaths) -> int:
    with Observer(place, Role.FOREGROUND) as observer:
        (model,) = (each for each in observer.status().models if each.exits)
        return model.revision


def version_of(model: Model, number: int, threshold: float | None = None) -> Cascade:
    """With another threshold of its exit at the promise that was asked for."""
    first, *stricter = model.cascade.levels
    if threshold is not None:
        first = dataclasses.replace(first, thresholds=(threshold,))
    return dataclasses.replace(model.cascade, revision=number, levels=(first, *stricter))


def ask_until(
    connection: RuntimeClient, model: Model, condition: Callable[[], bool], what: str
) -> None:
    """Go on asking, several at a time: a trial needs traffic. Long, for a machine that is busy."""
    deadline_s = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} has not come about"
        asked = [ask(connection, inputs) for inputs in (model.easy, model.hard) * 12]
        for answer in asked:
            answer.output()


def test_a_new_version_is_served_in_turns_and_then_alone(
    connection: RuntimeClient, place: RuntimePaths, model: Model
) -> None:
    write_cascade(candidate_file(model.file), version_of(model, 1, 1e-9))
    ask_until(connection, model, lambda: revision(place) == 1, "the new version")
    assert taken(ask(connection, model.hard)) == model.name, "it answers everything"
    wait_until(lambda: adapted_file(model.file).exists(), "the proved version's file")
    assert not candidate_file(model.file).exists()


def test_a_version_that_answers_less_is_deleted(
    connection: RuntimeClient, place: RuntimePaths, model: Model
) -> None:
    before = revision(place)
    write_cascade(candidate_file(model.file), version_of(model, 7, NEVER))
    ask_until(
        connection, model, lambda: not candidate_file(model.file).exists(), "the end of its trial"
    )
    assert revision(place) == before
    assert taken(ask(connection, model.easy)) == model.name
    with Observer(place, Role.FOREGROUND) as observer:
        (told, *_) = observer.status().incidents
    assert "revision 7, are rejected: it saves 0.0% of the model," in told.what


def test_a_version_that_repairs_the_promise_is_served_though_it_answers_less(
    connection: RuntimeClient, place: RuntimePaths, model: Model
) -> None:
    repairing = dataclasses.replace(version_of(model, 7, NEVER), repairs=True)
    write_cascade(candidate_file(model.file), repairing)
    ask_until(connection, model, lambda: revision(place) == 7, "the version that repairs")
    wait_until(lambda: not candidate_file(model.file).exists(), "its promotion")
    assert adapted_file(model.file).exists()
    assert taken(ask(connection, model.easy)) == ""
    with Observer(place, Role.FOREGROUND) as observer:
        (told, *_) = observer.status().incidents
    assert "revision 7, are promoted: it saves 0.0% of the model, the one before too" in told.what


def test_a_damaged_version_is_deleted_and_the_present_one_goes_on(
    connection: RuntimeClient, place: RuntimePaths, model: Model
) -> None:
    before = revision(place)
    write_cascade(candidate_file(model.file), version_of(model, 8))
    data = bytearray(candidate_file(model.file).read_bytes())
    data[-50] ^= 1
    candidate_file(model.file).write_bytes(data)
    wait_until(lambda: not candidate_file(model.file).exists(), "its end")
    assert revision(place) == before
    assert taken(ask(connection, model.easy)) == model.name


def test_caches_that_are_trained_anew_take_the_place_of_adapted_ones_without_a_load(
    connection: RuntimeClient, place: RuntimePaths, model: Model
) -> None:
    write_cascade(caches_file(model.file), version_of(model, 20, NEVER))
    later_ns = caches_file(model.file).stat().st_mtime_ns + 10**9
    os.utime(caches_file(model.file), ns=(later_ns, later_ns))
    wait_until(lambda: taken(ask(connection, model.easy)) == "", "the new version")
    write_cascade(caches_file(model.file), version_of(model, 21))
    os.utime(caches_file(model.file), ns=(later_ns + 10**9,) * 2)
    wait_until(lambda: taken(ask(connection, model.easy)) == model.name, "the newest version")
    assert revision(place) == 21


def test_the_requests_are_kept_as_samples(connection: RuntimeClient, model: Model) -> None:
    ask(connection, model.easy).output()
    wait_until(lambda: any(samples_folder(model.file).glob("*.npz")), "a sample")
