"""The number of threads for a program, as it is learnt from its runs."""

from __future__ import annotations

import pytest

from brisk.execution.threads import LONGEST_TRIED_NS, MOST_SIGNATURES, TRIALS, ThreadChoice


def settle(choice: ThreadChoice, times_ns: dict[int, int], signature: str = "a") -> list[int]:
    """The choices of enough runs that take what ``times_ns`` says of their threads."""
    chosen = []
    for _ in range(2 * TRIALS + 4):
        threads = choice.choose(signature)
        chosen.append(threads)
        choice.learn(signature, threads, times_ns[threads])
    return chosen


@pytest.mark.parametrize(
    ("times_ns", "expected"),
    [({1: 50_000, 4: 90_000}, 1), ({1: 90_000, 4: 50_000}, 4)],
    ids=["one is faster", "all are faster"],
)
def test_both_are_tried_and_the_faster_stays(times_ns: dict[int, int], expected: int) -> None:
    chosen = settle(ThreadChoice(4), times_ns)
    assert set(chosen[: 2 * TRIALS]) == {1, 4}
    assert set(chosen[2 * TRIALS :]) == {expected}


def test_a_long_run_is_tried_with_one_thread_at_most_once() -> None:
    chosen = settle(ThreadChoice(2), {1: 2 * LONGEST_TRIED_NS, 2: LONGEST_TRIED_NS + 1})
    assert chosen.count(1) <= 1
    assert chosen[-1] == 2


def test_each_set_of_shapes_is_learnt_on_its_own() -> None:
    choice = ThreadChoice(2)
    assert settle(choice, {1: 10, 2: 20}, "small")[-1] == 1
    assert settle(choice, {1: 20, 2: 10}, "large")[-1] == 2
    assert choice.choose("small") == 1


def test_the_first_run_of_each_does_not_count() -> None:
    choice = ThreadChoice(2)
    for run in range(2 * TRIALS):
        threads = choice.choose("a")
        choice.learn("a", threads, {1: 100, 2: 90 if run else 10**6}[threads])
    assert choice.choose("a") == 2


def test_more_shapes_than_are_remembered_run_with_all_threads() -> None:
    choice = ThreadChoice(3)
    for number in range(MOST_SIGNATURES):
        choice.choose(number)
    assert settle(choice, {1: 1, 3: 2}, "one too many") == [3] * (2 * TRIALS + 4)


def test_with_one_thread_there_is_nothing_to_choose() -> None:
    assert ThreadChoice(1).choose("a") == 1
