"""Weights are compared with their checksums behind the sessions, and before any answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from brisk.artefacts.container import Container
from brisk.errors import ArtefactError, InternalError, InvalidModelError
from brisk.runtime.models.kinds.segment_session import MendedModel, load_segment_session
from brisk.segments.confirmation import Confirmation
from brisk.segments.frame import SegmentFrame, run_serially
from brisk.segments.model import cutting
from brisk.segments.onnxruntime.session import Session
from brisk.segments.prepared.form import PreparedModel, find_prepared
from brisk.segments.prepared.preparation import prepare
from brisk.segments.source import Source
from brisk.segments.starting import start_segments
from brisk.segments.timeline import Recorder
from brisk.tuning import SessionTuning
from unit.segments.segment_models import chain, source_of, whole
from waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("private_cache")

ROWS = np.random.default_rng(3).standard_normal((5, 512)).astype(np.float32)
INPUTS = {"x": ROWS}


@pytest.fixture(autouse=True)
def _short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "SMALL_MODEL_NODES", 0)
    monkeypatch.setattr(cutting, "SMALL_MODEL_BYTES", 0)
    monkeypatch.setattr(cutting, "CALL_NS", 0)
    monkeypatch.setattr(cutting, "LONGEST_SEGMENT_NS", 30_000)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return chain(tmp_path / "model.onnx")


class Broken(Source):
    """Opens the segments of ``wrong``, and says of those in ``damaged`` that they are so."""

    origin = "artefact"
    weight_bytes = 0

    def __init__(self, right: Source, wrong: Source, damaged: frozenset[int]) -> None:
        self.plan = right.plan
        self._right, self._wrong, self._damaged = right, wrong, damaged
        self.may_confirm = threading.Event()

    def open(self, index: int) -> Session:
        return (self._wrong if index in self._damaged else self._right).open(index)

    def open_warm(self, index: int) -> Session | None:
        return None

    def confirm(self, index: int) -> Session | None:
        assert self.may_confirm.wait(PATIENCE_S)
        return self._right.open(index) if index in self._damaged else None


@pytest.fixture
def broken(model: Path, tmp_path: Path) -> Broken:
    (tmp_path / "other").mkdir()
    wrong = source_of(chain(tmp_path / "other" / "model.onnx", seed=99))
    return Broken(source_of(model), wrong, frozenset({1, 2}))


def damaged_forms(model: Path) -> Iterator[int]:
    """The model's prepared form with a byte of one large blob changed, then of another one.

    Yields how many there are.
    """
    path = prepare(model, 1).path
    content = path.read_bytes()
    container = Container(path)
    places = [container.place(number) for number in range(len(container))]
    del container
    large = [place for place in places if place.size > 500_000]
    for place in large:
        changed = bytearray(content)
        changed[place.offset + place.size // 2 + 3] ^= 0x41  # sign and exponent of a float32
        path.chmod(0o600)
        path.write_bytes(changed)
        yield len(large)


def test_no_answer_is_made_of_damaged_weights_wherever_they_are(model: Path) -> None:
    expected = whole(model, INPUTS)["y"]
    for count, wanted in enumerate(damaged_forms(model), start=1):  # noqa: B007  # seen below
        told: list[ArtefactError] = []
        session = load_segment_session(model, 1, told.append, None)
        answer = run_serially(session.starting.program, INPUTS)["y"]
        np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)
        assert "is damaged" in str(told[0])
        assert session.wants_artefact
        session.close()
    assert count == wanted >= 4


@pytest.mark.parametrize("has_lanes", [False, True])
def test_a_run_with_damaged_segments_begins_again_with_what_takes_their_place(
    model: Path, broken: Broken, has_lanes: bool
) -> None:
    starting = start_segments(broken, 1, Recorder())
    frame = SegmentFrame(starting.program, INPUTS)
    lanes = starting.start_lanes(1) if has_lanes else None
    steps = [frame.step() for _ in range(len(broken.plan.segments) - 1)]
    assert not any(steps)
    assert not starting.program.confirmation.is_over
    broken.may_confirm.set()
    count = 1
    while not frame.step():
        count += 1
    assert count == 1 + len(broken.plan.segments)
    assert starting.program.confirmation.replaced == 2
    expected = whole(model, INPUTS)["y"]
    np.testing.assert_allclose(frame.results()["y"], expected, rtol=1e-4, atol=1e-5)
    again = run_serially(starting.program, INPUTS)["y"]
    np.testing.assert_array_equal(again, frame.results()["y"])
    if lanes is not None:
        lanes.close()


def test_a_sound_model_runs_once(model: Path) -> None:
    starting = start_segments(PreparedModel(prepare(model, 1).path, model, 1), 1, Recorder())
    frame = SegmentFrame(starting.program, INPUTS)
    steps = [frame.step() for _ in starting.program.plan.segments]
    assert steps == [False] * (len(steps) - 1) + [True]
    assert starting.program.confirmation.is_over


def test_whoever_finishes_waits_for_what_another_has_begun(broken: Broken) -> None:
    replaced: list[int] = []
    confirmation = Confirmation(broken, 3, lambda index, session: replaced.append(index))
    lane = threading.Thread(target=confirmation.work)
    lane.start()
    ended = threading.Event()

    def finish() -> None:
        confirmation.finish()
        ended.set()

    executor = threading.Thread(target=finish)
    executor.start()
    assert not ended.wait(0.05)
    assert not confirmation.is_over
    broken.may_confirm.set()
    assert ended.wait(PATIENCE_S)
    assert confirmation.is_over
    assert sorted(replaced) == [1, 2]
    lane.join()
    executor.join()


def test_a_run_fails_where_nothing_can_take_the_place_of_what_is_damaged(model: Path) -> None:
    for _ in damaged_forms(model):
        path = find_prepared(model)
        assert path is not None
        prepared = PreparedModel(path, model, 1)
        told: list[ArtefactError] = []
        source = MendedModel(prepared, model, 1, told.append, SessionTuning(), ())
        starting = start_segments(source, 1, Recorder())
        chain(model, layers=3)
        with pytest.raises(InvalidModelError, match="not what it was prepared from"):
            run_serially(starting.program, INPUTS)
        break


def test_what_cannot_be_read_is_not_confirmed(broken: Broken) -> None:
    def fail(index: int, session: Session) -> None:
        raise MemoryError("no memory")

    broken.may_confirm.set()
    confirmation = Confirmation(broken, 3, fail)
    with pytest.raises(InternalError, match="segment 1 cannot be confirmed: MemoryError"):
        confirmation.finish()
    assert not confirmation.is_over


def test_nothing_is_answered_early_before_all_is_confirmed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(model, 1)
    may_confirm = threading.Event()
    confirm = PreparedModel.confirm

    def wait_and_confirm(prepared: PreparedModel, index: int) -> Session | None:
        assert may_confirm.wait(PATIENCE_S)
        return confirm(prepared, index)

    monkeypatch.setattr(PreparedModel, "confirm", wait_and_confirm)
    session = load_segment_session(model, 1, pytest.fail, None)
    asked: list[Mapping[str, object]] = []
    monkeypatch.setattr(session.caches, "start", lambda inputs, *_: asked.append(inputs))
    session.start(INPUTS, ["y"])
    assert not asked
    may_confirm.set()
    wait_until(lambda: session.starting.program.confirmation.is_over, "its confirmation")
    session.start(INPUTS, ["y"])
    assert len(asked) == 1
    session.close()
