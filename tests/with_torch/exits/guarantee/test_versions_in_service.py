"""Versions of caches in service: tried, refuted and told, by their promise or by their cost."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from brisk.exits.guarantee.audit import FEWEST_AUDITED, FEWEST_ROWS
from brisk.exits.serving.frame import Answer
from brisk.runtime.early_exit.audits import Auditor, Audits
from brisk.runtime.sessions.served_caches import ServedCaches
from brisk.runtime.sessions.session import CachedRun
from brisk.runtime.sessions.session_caches import Change, SessionCaches
from support.exits.cascades import served


def version(revision: int) -> ServedCaches:
    model = served(exits=(1, 3), take=10)
    return ServedCaches.of(dataclasses.replace(model.cascade, revision=revision), model.cut)


def test_a_refuted_version_gives_way_to_the_one_before_wherever_that_is() -> None:
    """The one before is in memory; or on disk, after a restart, where it is taken back; what was
    trained stays."""
    caches = SessionCaches()
    trained, adapted = version(0), version(3)
    caches.bring(trained)
    caches.bring_candidate(adapted)
    assert caches.served is trained
    for share in (0.0, 0.9):
        saving = caches.trial.candidate if share else caches.trial.present
        saving.add(FEWEST_ROWS, share)
    for _ in range(FEWEST_AUDITED):
        adapted.audit.note(0, 0.97, agrees=True)
    caches.settle()
    assert caches.served is adapted
    caches.refuted(adapted)
    assert caches.served is trained
    caches.bring(adapted)
    assert caches.served is adapted
    caches.refuted(adapted)
    assert caches.served is adapted, "until the file before it is read; its broken exit is off"
    caches.bring(trained)
    assert caches.served is trained
    caches.refuted(trained)
    assert caches.news == [Change.PROMOTED, Change.ROLLED_BACK, Change.WITHDRAWN]


def test_caches_learned_from_the_traffic_alone_go_once_they_are_refuted() -> None:
    """Else the next load would serve the same ones again, with no evidence against them."""
    caches = SessionCaches()
    learned = version(0)
    learned.may_be_withdrawn = True
    caches.bring(learned)
    assert caches.served is learned
    caches.refuted(learned)
    caches.refuted(learned)
    assert caches.news == [Change.WITHDRAWN], "once, whatever else its audits find"


def test_a_frame_s_answers_are_audited_by_the_promise_that_it_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They keep 97 % of which four in a hundred are wrong, and not 99.5 %."""
    refuted: list[ServedCaches] = []
    monkeypatch.setattr(SessionCaches, "refuted", lambda _, version: refuted.append(version))
    caches = SessionCaches()
    served_version = levelled(0.97, 0.995, revision=1)
    caches.bring(served_version)
    assert caches.served is served_version
    for accuracy in (0.97, 0.995):
        frame = caches.start({"image": ROWS}, ["scores"], accuracy)
        assert frame is not None
        half = tuple(range(len(ROWS) // 2))
        frame.answers = [Answer(half, {}, 0, np.zeros((len(half), 2), np.float32))]
        session = SimpleNamespace(caches=caches, path=Path("model.onnx"))
        cached: Any = CachedRun(session, frame, {"image": ROWS}, ("m", "1"))  # type: ignore[arg-type]
        audits = Audits(Auditor(), share=1.0)
        for _ in range(40):
            (audit,) = audits.keep([cached])
            audits.verdicts.append((audit, [row > 0 for row in range(len(half))]))
        audits.settle()
        is_refuted = accuracy > 0.99
        assert served_version.switched_off(0.97) == frozenset()
        assert served_version.switched_off(0.995) == ({0} if is_refuted else set())
    assert [exit_.state for exit_ in served_version.exits()] == ["on below 99.5%", "on"]
    assert not refuted, "those who ask for the promise that was made are served on"
    frame = caches.start({"image": ROWS}, ["scores"], 0.995)
    assert frame is not None
    frame.step()
    assert frame.evaluated[0] == 0


def test_what_was_learned_is_told_as_off_once_no_exit_is_evaluated() -> None:
    caches = SessionCaches()
    learned = levelled(0.97)
    caches.bring(learned)
    assert caches.served is learned
    caches.learning = "learned from 1,000 samples: likely 1.50 ×"
    assert caches.progress == caches.learning
    learned.costly[0] = "it costs more than it saves"
    assert caches.progress == caches.learning
    learned.costly[1] = "it costs more than it saves"
    assert caches.progress.startswith("off: all exits are switched off until the next load")


ROWS = np.zeros((50, 3, 12, 12), np.float32)


def levelled(*accuracies: float, revision: int = 0, repairs: bool = False) -> ServedCaches:
    """A version with levels of these accuracies."""
    model = served(exits=(1, 3), take=11)
    levels = tuple(dataclasses.replace(model.level, accuracy=accuracy) for accuracy in accuracies)
    cascade = dataclasses.replace(
        model.cascade, levels=levels, revision=revision, repairs=repairs, synchronous=True
    )
    return ServedCaches.of(cascade, model.cut)


def run(caches: SessionCaches, agreement: float) -> ServedCaches:
    """Run rows of which half save something. Return the version that ran."""
    frame = caches.start({"image": ROWS}, ["scores"], agreement)
    assert frame is not None, "all is left to the model"
    half = tuple(range(len(ROWS) // 2))
    frame.answers = [Answer(half, {}, 0, np.zeros((len(half), 2), np.float32))]
    frame.evaluated[0] = len(ROWS)
    version = caches.note(frame)
    assert version is not None
    return version


@pytest.mark.parametrize("repairs", [False, True])
def test_a_candidate_without_the_level_that_is_asked_for_takes_no_early_answer_away(
    repairs: bool,
) -> None:
    """Nothing it has answered speaks for it, and its trial ends all the same."""
    caches = SessionCaches()
    present = levelled(0.97, 0.98)
    caches.bring(present)
    caches.bring_candidate(levelled(0.97, revision=1, repairs=repairs))
    for _ in range(2 * FEWEST_ROWS // len(ROWS)):
        assert run(caches, 0.98) is present
    assert caches.candidate is None
    assert caches.served is present
    assert caches.news == [Change.REJECTED]


def test_requests_of_both_levels_try_a_candidate_that_has_one_of_them() -> None:
    """It gets every other run of its level; of the others it would save nothing."""
    caches = SessionCaches()
    present, candidate = levelled(0.97, 0.98), levelled(0.97, revision=1)
    caches.bring(present)
    caches.bring_candidate(candidate)
    ran = [run(caches, agreement) for agreement in (0.97, 0.98) * 3]
    assert [version is candidate for version in ran] == [False, False, True, *[False] * 3]
    assert caches.trial.present.rows == 5 * len(ROWS)
    assert caches.trial.candidate.rows == 4 * len(ROWS)
    assert caches.trial.candidate.mean == pytest.approx(caches.trial.present.mean / 4)


def test_a_candidate_that_alone_has_the_level_that_is_asked_for_takes_over() -> None:
    caches = SessionCaches()
    candidate = levelled(0.97, 0.98, revision=1)
    caches.bring(levelled(0.97))
    caches.bring_candidate(candidate)
    for _ in range(FEWEST_AUDITED):
        candidate.audit.note(0, 0.97, agrees=True)
    for _ in range(2 * FEWEST_ROWS // len(ROWS)):
        assert run(caches, 0.98) is candidate
    assert caches.served is candidate
    assert caches.news == [Change.PROMOTED]
    assert caches.start({"image": ROWS}, ["scores"], 0.99) is None, "nobody has it"
