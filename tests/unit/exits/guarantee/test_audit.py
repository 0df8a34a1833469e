"""The audit: a broken promise is noticed, a kept one is left alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from brisk.exits.guarantee.audit import (
    EXTRA_MISTAKES,
    LIMIT,
    STATED_AUDITS,
    CascadeAudit,
    ExitAudit,
)


def audits_until_off(agreement: float, promise: float, seed: int, most: int) -> int | None:
    random = np.random.default_rng(seed)
    audit = ExitAudit(promise)
    for count in range(1, most + 1):
        if audit.note(bool(random.random() < agreement)):
            return count
    return None


def expected_audits(promised: float, actual: float) -> float:
    """About how many audited answers it takes: the limit over the mean step of the evidence."""
    broken = promised - EXTRA_MISTAKES
    drift = actual * math.log(broken / promised)
    drift += (1 - actual) * math.log((1 - broken) / (1 - promised))
    return math.log(LIMIT) / drift


@pytest.mark.parametrize("promise", [0.95, 0.97, 0.99])
def test_ten_points_less_are_noticed_within_the_stated_number(promise: float) -> None:
    counts = [audits_until_off(promise - 0.1, promise, seed, STATED_AUDITS) for seed in range(300)]
    assert None not in counts
    noticed = [count for count in counts if count is not None]
    assert np.mean(noticed) == pytest.approx(expected_audits(promise, promise - 0.1), rel=0.35)


@pytest.mark.parametrize("promise", [0.95, 0.97, 0.99])
def test_an_exit_that_just_keeps_its_promise_stays_on_for_long(promise: float) -> None:
    """The audit ends one after 1,000 audited answers on average at the soonest; within 250,
    rarely."""
    off = sum(audits_until_off(promise, promise, seed, 250) is not None for seed in range(200))
    assert off <= 200 * 250 / 1000


def test_an_exit_that_breaks_after_long_service_is_noticed_as_soon() -> None:
    audit = ExitAudit(0.97)
    for _ in range(10_000):
        assert not audit.note(True)
    random = np.random.default_rng(0)
    assert any(audit.note(bool(random.random() < 0.87)) for _ in range(STATED_AUDITS))


def test_only_the_broken_exit_is_switched_off_and_only_once() -> None:
    audit = CascadeAudit()
    assert sum(audit.note(1, 0.97, False) for _ in range(20)) == 1
    for _ in range(20):
        audit.note(0, 0.97, True)
    assert audit.switched_off(0.97) == {1}


def test_an_exit_that_breaks_a_stricter_promise_keeps_to_the_others() -> None:
    """Four in a hundred are wrong, which does not refute 97 %."""
    audit = CascadeAudit()
    for number in range(5000):
        audit.note(0, 0.995, number % 25 > 0)
        audit.note(0, 0.97, number % 25 > 0)
    assert audit.switched_off(0.97) == frozenset()
    assert audit.switched_off(0.995) == {0}
    assert audit.audited == 10_000


def test_what_breaks_a_promise_breaks_every_stricter_one() -> None:
    audit = CascadeAudit()
    for _ in range(20):
        audit.note(0, 0.97, False)
    assert audit.switched_off(0.995) == {0}
    assert audit.switched_off(0.95) == frozenset()
