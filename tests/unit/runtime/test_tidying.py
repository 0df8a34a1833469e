"""Memory is given back while no request waits, and behind loads."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from brisk.runtime import tidying
from brisk.runtime.tidying import tidy_up


class Knot:
    """Unreachable only for the collector."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def knot() -> Iterator[weakref.ref[Knot]]:
    gc.disable()
    yield weakref.ref(Knot())
    gc.enable()


def test_it_waits_for_the_end_of_requests_and_then_collects(knot: weakref.ref[Knot]) -> None:
    moments = [False, False, True]
    assert tidy_up(lambda timeout_s: moments.pop(0))
    assert not moments
    assert knot() is None


def test_a_load_that_comes_meanwhile_goes_first(knot: weakref.ref[Knot]) -> None:
    moments = [False, None]
    assert not tidy_up(lambda timeout_s: moments.pop(0))
    assert knot() is not None


def test_requests_without_an_end_do_not_keep_it_for_ever(
    knot: weakref.ref[Knot], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidying, "LONGEST_WAIT_S", 0.01)
    assert tidy_up(lambda timeout_s: False)
    assert knot() is None
