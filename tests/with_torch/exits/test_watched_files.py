"""What a served session makes of files of caches that are written, replaced or deleted beside it.

The session and its watch are in this process; no runtime is needed.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from brisk.exits.cascade_file import digest_of, write_cascade
from brisk.exits.files.versions import (
    caches_file,
    candidate_file,
    make_private_folder,
)
from brisk.runtime.early_exit.cache_watch import Adaptation, CacheWatch
from brisk.runtime.sessions.segment_session import SegmentSession, load_segment_session
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
