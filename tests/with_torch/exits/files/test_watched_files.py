"""What a served session makes of files of caches that are written, replaced or deleted beside it.

The session and its watch are in this process; no runtime is needed.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from brisk import paths
from brisk.exits.cascade import Cascade, is_asked_for
from brisk.exits.cascade_file import digest_of, read_cascade, write_cascade
from brisk.exits.files.learning_record import (
    Aim,
    LearningRecord,
    Stage,
    collected,
    read_record,
    write_record,
)
from brisk.exits.files.sample_files import write_samples
from brisk.exits.files.versions import (
    adapted_file,
    caches_file,
    candidate_file,
    learned_file,
    make_private_folder,
)
from brisk.exits.scores import find_scores
from brisk.runtime.early_exit import cache_watch
from brisk.runtime.early_exit.adaptation import Adaptation
from brisk.runtime.early_exit.cache_watch import CacheWatch
from brisk.runtime.early_exit.first_learning import FirstLearning
from brisk.runtime.sessions import served_caches
from brisk.runtime.sessions.segment_session import SegmentSession, load_segment_session
from brisk.runtime.sessions.session_caches import Change
from support.exits.cascades import graph_of, network, served
from support.exits.exits_model import Model, make_model
from support.waiting import wait_until

LOOK_S = 0.02


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_model(tmp_path_factory.mktemp("original") / "model.onnx")


@pytest.fixture
def model(original: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """With caches beside it, and a private folder."""
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / original.file.name
    shutil.copy(original.file, file)
    shutil.copy(caches_file(original.file), caches_file(file))
    make_private_folder(file)
    return dataclasses.replace(original, file=file)


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    """What a test opens is closed after it, which ends its being watched."""
    yield
    while _OPENED:
        _OPENED.pop().close()


_OPENED: list[SegmentSession] = []


def loaded(model: Model) -> SegmentSession:
    session = load_segment_session(model.file, 1, None, None)
    _OPENED.append(session)
    while session.is_loading:
        session.table.wait(1)
    return session


def watched(model: Model) -> SegmentSession:
    """Return a session that is served with the model's caches, whose files are watched."""
    session, watch = loaded(model), CacheWatch(Adaptation(0.0), LOOK_S)
    caches = watch.open(session)
    assert caches is not None
    watch.serve(session, caches)
    return session


def revision(session: SegmentSession) -> int | None:
    served = session.caches.served
    return None if served is None else served.cascade.revision


def replace_model(file: Path) -> None:
    """Rename another model, of the same structure, into the model's place."""
    other = onnx.load(file)
    other.producer_name = "somebody else"
    onnx.save(other, file.with_suffix(".new"))
    file.with_suffix(".new").rename(file)


def test_caches_of_another_file_in_the_models_place_wait_for_its_load(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    session = watched(model)
    replace_model(model.file)
    own = dataclasses.replace(model.cascade, revision=7, model_digest=digest_of(model.file))
    write_cascade(caches_file(model.file), own)
    write_cascade(candidate_file(model.file), own)
    wait_until(lambda: "is another than the loaded one" in caplog.text, "a warning")
    assert revision(session) == 0, "what was proved for the loaded file goes on"
    assert session.caches.candidate is None
    assert candidate_file(model.file).exists(), "the next load tries it"
    assert revision(watched(model)) == 7
    assert caplog.text.count("is another than the loaded one") == 1


def test_a_file_replaced_before_caches_are_first_read_is_served_without_them(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    session = loaded(model)
    replace_model(model.file)
    own = dataclasses.replace(model.cascade, model_digest=digest_of(model.file))
    write_cascade(caches_file(model.file), own)
    assert CacheWatch(None).open(session) is None
    assert "they are served from its next load on" in caplog.text


@pytest.mark.parametrize("unreadable", ["learned.caches", "model.onnx"])
def test_what_cannot_be_read_at_a_load_is_neither_deleted_nor_forgotten(
    model: Model,
    unreadable: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The process may have had too many files open."""
    caches_file(model.file).unlink()
    write_cascade(learned_file(model.file), version(model, 3))
    write_cascade(candidate_file(model.file), version(model, 4))
    aim = Aim.of(model.file, 0.97, "", "")
    write_record(model.file, LearningRecord(Stage.SERVED, aim))
    first = FirstLearning(1 << 20, is_on=False, learns=True)
    session, watch = loaded(model), CacheWatch(Adaptation(0.0), LOOK_S, first)
    failing, opened_file = True, os.open

    def opening(path: str, flags: int, *more: object, **further: object) -> int:
        if failing and path == unreadable:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened_file(path, flags, *more, **further)  # type: ignore[arg-type]

    monkeypatch.setattr(paths.os, "open", opening)
    monkeypatch.setattr(cache_watch, "RETRY_S", 0.0)
    opened = watch.open(session, aim)
    assert opened is not None
    assert "cannot be read: Too many open files" in caplog.text
    assert "are ignored" not in caplog.text
    watch.serve(session, opened, aim)
    tried = f"caches of {model.file}: UnavailableError: "
    wait_until(lambda: caplog.text.count(tried) > 1, "a look at the files")
    assert revision(session) is None
    assert read_record(model.file) is not None
    failing = False
    wait_until(lambda: revision(session) == 3, "what was learned")
    wait_until(lambda: revision(session) == 3 and session.caches.candidate is not None, "a trial")


def test_a_model_whose_caches_cannot_be_made_sense_of_does_not_end_the_watch_of_others(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache_watch, "RETRY_S", 0.0)
    session = watched(model)

    def read(path: Path, digest: str | None) -> Cascade:
        if read_cascade(path, digest).revision == 5:
            raise TypeError("a number is a text")
        return read_cascade(path, digest)

    monkeypatch.setattr(served_caches, "read_cascade", read)
    write_cascade(caches_file(model.file), version(model, 5))
    wait_until(lambda: "TypeError: a number is a text" in caplog.text, "words")
    write_cascade(caches_file(model.file), version(model, 6))
    wait_until(lambda: revision(session) == 6, "the next version")


def version(model: Model, number: int) -> Cascade:
    return dataclasses.replace(model.cascade, revision=number)


def test_a_file_that_is_replaced_while_it_is_read_is_served_at_the_next_look(
    model: Model,
) -> None:
    session, watch = loaded(model), CacheWatch(Adaptation(0.0), LOOK_S)
    caches = watch.open(session)
    assert caches is not None
    write_cascade(caches_file(model.file), version(model, 9))
    watch.serve(session, caches)
    wait_until(lambda: revision(session) == 9, "the version that came meanwhile")


def test_a_candidate_ends_with_the_caches_that_it_was_made_of(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "brisk")
    session = watched(model)
    write_cascade(candidate_file(model.file), version(model, 1))
    wait_until(lambda: revision(session) == 0 and session.caches.candidate is not None, "a trial")
    write_cascade(caches_file(model.file), version(model, 20))
    wait_until(lambda: revision(session) == 20, "the caches that were trained anew")
    wait_until(lambda: not candidate_file(model.file).exists(), "the candidate's end")
    assert session.caches.candidate is None
    assert "are deleted: the version that they were made of is gone" in caplog.text
    write_cascade(candidate_file(model.file), version(model, 21))
    wait_until(lambda: revision(session) == 20 and session.caches.candidate is not None, "another")


def test_a_candidate_promoted_while_caches_are_trained_anew_does_not_replace_them(
    model: Model,
) -> None:
    session = watched(model)
    write_cascade(candidate_file(model.file), version(model, 1))
    wait_until(lambda: revision(session) == 0 and session.caches.candidate is not None, "a trial")
    write_cascade(caches_file(model.file), version(model, 20))
    session.caches.changes.append(Change.PROMOTED)  # decided before the watch has looked
    wait_until(lambda: revision(session) == 20, "the caches that were trained anew")
    wait_until(lambda: not candidate_file(model.file).exists(), "the candidate's end")
    assert not adapted_file(model.file).exists()


def test_what_was_learned_and_refuted_is_gone_and_learned_anew_of_new_samples(
    model: Model,
) -> None:
    """By the worker that does not learn, too: a model may be asked by its requests alone."""
    session = learned_session(model, CacheWatch(None, LOOK_S))
    write_samples(model.file, [{"image": model.easy}])
    served = session.caches.served
    assert served is not None
    session.caches.refuted(served)
    wait_until(lambda: not learned_file(model.file).exists(), "the end of its file")
    wait_until(lambda: revision(session) is None, "an end of early answers")
    aim = Aim.of(model.file, 0.97, "", "")
    first = FirstLearning(1 << 20, is_on=True, learns=True)
    assert first.look(model.file, aim, 1) == (
        False,
        "withdrawn: what was learned is gone; a new load begins anew",
    )
    assert collected(model.file)[0] == len(model.easy)
    first.begin(model.file, aim)
    assert collected(model.file) == (0, 0), "of the same samples the same would be learned"
    assert read_record(model.file) is None


def test_what_was_learned_since_stays_when_the_version_before_it_is_refuted(
    model: Model,
) -> None:
    session = learned_session(model, CacheWatch(Adaptation(0.0), LOOK_S))
    served = session.caches.served
    assert served is not None
    better = dataclasses.replace(model.cascade, confidence=0.99)
    write_cascade(learned_file(model.file), better)
    session.caches.refuted(served)  # before the watch has looked

    def is_better() -> bool:
        now = session.caches.served
        return now is not None and now.cascade.confidence == 0.99

    wait_until(is_better, "the version that was learned since")
    assert learned_file(model.file).exists()


def test_a_candidate_is_tried_again_behind_the_version_that_takes_the_served_ones_place(
    model: Model,
) -> None:
    """Adaptation publishes no other one while its file is there."""
    session = watched(model)
    write_cascade(adapted_file(model.file), version(model, 1))
    wait_until(lambda: revision(session) == 1, "what has proved itself")
    write_cascade(candidate_file(model.file), version(model, 2))
    wait_until(lambda: revision(session) == 1 and session.caches.candidate is not None, "a trial")
    served = session.caches.served
    assert served is not None
    session.caches.refuted(served)
    wait_until(lambda: revision(session) == 0, "the version before")
    wait_until(lambda: revision(session) == 0 and session.caches.candidate is not None, "a trial")
    assert candidate_file(model.file).exists()


def learned_session(model: Model, watch: CacheWatch) -> SegmentSession:
    """Return a session that is served with caches that were learned from its traffic alone."""
    caches_file(model.file).rename(learned_file(model.file))
    aim = Aim.of(model.file, 0.97, "", "")
    write_record(model.file, LearningRecord(Stage.SERVED, aim))
    session = loaded(model)
    caches = watch.open(session, aim)
    assert caches is not None
    watch.serve(session, caches, aim)
    assert revision(session) == 0
    return session


def test_a_model_is_not_cut_for_what_was_learned_unless_its_entry_takes_it(model: Model) -> None:
    def taps(**takes: bool) -> list[str]:
        session = load_segment_session(model.file, 1, None, None, **takes)
        _OPENED.append(session)
        return list(session.taps)

    own = list(model.cascade.taps)
    assert taps(takes_learned=False) == own, "they were trained by hand"
    caches_file(model.file).rename(learned_file(model.file))
    assert taps(takes_learned=True) == own
    assert taps(takes_learned=False) == []


def test_what_is_served_by_an_entrys_word_is_not_where_the_server_alone_asks() -> None:
    graph = graph_of(network(tail="plain"))
    labelled = graph_of(network(tail="labels"))
    cascade = served().cascade
    for each, is_asked in ((labelled, True), (graph, False)):
        own = dataclasses.replace(cascade, scores=find_scores(each))
        assert is_asked_for(own, each, Aim(0.97))
        assert is_asked_for(own, each, Aim(0.97, needs_classes=True)) is is_asked
        assert not is_asked_for(own, each, Aim(0.97, "cosine 0.9"))


@pytest.mark.parametrize("who", ["nobody", "another entry"])
def test_samples_go_with_the_wish_to_learn_from_them(
    model: Model, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that asks for nothing is loaded before its predecessor is unloaded."""
    monkeypatch.setattr(cache_watch, "LEFT_S", 0.1)
    first = FirstLearning(1 << 20, is_on=True, learns=True)
    watch = CacheWatch(Adaptation(0.0), LOOK_S, first)
    before = learned_session(model, watch)
    write_samples(model.file, [{"image": model.easy}])
    watch.collect(loaded(model), None)
    time.sleep(0.3)
    assert collected(model.file)[0] == len(model.easy), "the predecessor learns from them"
    if who == "nobody":
        before.close()
        wait_until(lambda: collected(model.file) == (0, 0), "an end of the samples")
        assert learned_file(model.file).exists(), "it may ask again"
    else:
        time.sleep(0.3)
        assert collected(model.file)[0] == len(model.easy)


def test_where_no_samples_are_taken_none_are_kept(model: Model) -> None:
    write_samples(model.file, [{"image": model.easy}])
    first = FirstLearning(1 << 20, is_on=False, learns=True)
    session, watch = loaded(model), CacheWatch(Adaptation(0.0), LOOK_S, first)
    caches = watch.open(session)
    assert caches is not None
    watch.serve(session, caches)
    wait_until(lambda: collected(model.file) == (0, 0), "an end of the samples")


def test_a_candidate_older_than_the_caches_is_not_tried_after_a_load(model: Model) -> None:
    write_cascade(candidate_file(model.file), version(model, 1))
    write_cascade(caches_file(model.file), version(model, 20))
    session = watched(model)
    wait_until(lambda: not candidate_file(model.file).exists(), "its end")
    assert revision(session) == 20
    assert session.caches.candidate is None


def test_deleted_caches_answer_no_longer_though_older_learned_ones_lie_there(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    """The entry asks for nothing that was learned."""
    caplog.set_level(logging.INFO, "brisk")
    write_cascade(learned_file(model.file), version(model, 3))
    write_cascade(caches_file(model.file), version(model, 20))
    session = watched(model)
    assert revision(session) == 20
    caches_file(model.file).unlink()
    wait_until(lambda: revision(session) is None, "an end of early answers")
    wait_until(lambda: "are not what the entry asks for, and not served" in caplog.text, "words")


def test_caches_that_cannot_be_read_leave_the_present_ones(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    session = watched(model)
    caches_file(model.file).write_bytes(b"torn")
    wait_until(lambda: f"caches '{caches_file(model.file)}' are ignored" in caplog.text, "words")
    assert revision(session) == 0
