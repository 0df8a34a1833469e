"""The number of threads for a program, as it is learnt from its runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brisk.scheduling.threads import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    LONGEST_TRIED_NS,
    MOST_SIGNATURES,
    RUNS_A_TURN,
    TURNS,
    ThreadChoice,
)

TRIAL = 2 * TURNS * RUNS_A_TURN


def run(
    choice: ThreadChoice, times_ns: dict[int, int], signature: str = "a", count: int = TRIAL
) -> list[int]:
    """The choices of ``count`` runs that take what ``times_ns`` says of their threads."""
    return run_as(choice, lambda number, threads: times_ns[threads], signature, count)


def run_as(
    choice: ThreadChoice, time_ns: Callable[[int, int], int], signature: str, count: int
) -> list[int]:
    """The same with times by number of the run and threads."""
    chosen = []
    for number in range(count):
        threads = choice.choose(signature)
        chosen.append(threads)
        choice.learn(signature, threads, time_ns(number, threads))
    return chosen


@pytest.mark.parametrize(
    ("times_ns", "expected"),
    [
        ({1: 50_000, 4: 90_000}, 1),
        ({1: 60_000, 4: 50_000}, 4),
        ({1: 98, 4: 100}, 1),
        ({1: 100, 4: 98}, 1),
    ],
    ids=["one is faster", "all are faster", "as fast", "no difference worth the others"],
)
def test_both_are_tried_in_turns_and_the_faster_stays(
    times_ns: dict[int, int], expected: int
) -> None:
    choice = ThreadChoice(4)
    turn = [4] * RUNS_A_TURN + [1] * RUNS_A_TURN
    assert run(choice, times_ns) == turn * TURNS
    assert run(choice, times_ns, count=FIRST_PAUSE) == [expected] * FIRST_PAUSE


def test_a_number_that_is_much_slower_than_the_present_one_is_tried_three_times() -> None:
    """The first does not count, and two may have been unlucky only where the others were not."""
    choice = ThreadChoice(4)
    times_ns = {1: 67_000, 4: 50_000}
    once = [4] * RUNS_A_TURN + [1] * 3
    assert run(choice, times_ns, count=len(once) + FIRST_PAUSE) == once + [4] * FIRST_PAUSE
    assert run(choice, times_ns, count=len(once)) == once


def test_a_trial_goes_on_where_the_present_number_has_one_slow_run() -> None:
    choice = ThreadChoice(4)
    times_ns = {1: 90_000, 4: 50_000}
    turn = [4] * RUNS_A_TURN + [1] * RUNS_A_TURN
    found = run_as(choice, lambda number, t: 10**6 if number == 2 else times_ns[t], "a", TRIAL)
    assert found == turn * TURNS


def test_a_long_run_is_never_tried_with_one_thread() -> None:
    times_ns = {1: 2 * LONGEST_TRIED_NS, 2: LONGEST_TRIED_NS + 1}
    assert run(ThreadChoice(2), times_ns, count=500) == [2] * 500


def test_each_set_of_shapes_is_learnt_on_its_own() -> None:
    choice = ThreadChoice(2)
    run(choice, {1: 10, 2: 20}, "small")
    run(choice, {1: 20, 2: 10}, "large")
    assert (choice.choose("small"), choice.choose("large")) == (1, 2)


def test_the_first_run_of_each_turn_does_not_count() -> None:
    choice = ThreadChoice(2)
    run_as(
        choice,
        lambda number, threads: {1: 100, 2: 90 if number % RUNS_A_TURN else 10**6}[threads],
        "a",
        TRIAL,
    )
    assert choice.choose("a") == 2


def test_single_runs_that_something_else_slowed_down_do_not_decide() -> None:
    choice = ThreadChoice(2)
    slow = {1, 2, 2 * RUNS_A_TURN + 1}
    run_as(
        choice,
        lambda number, threads: 10**6 if number in slow else {1: 90, 2: 60}[threads],
        "a",
        TRIAL,
    )
    assert choice.choose("a") == 2


def test_a_choice_that_no_longer_holds_is_revised_and_tried_ever_more_rarely() -> None:
    choice = ThreadChoice(2)
    run(choice, {1: 50, 2: 90})
    later = {1: 90, 2: 50}
    assert run(choice, later, count=FIRST_PAUSE) == [1] * FIRST_PAUSE
    assert set(run(choice, later)) == {1, 2}
    assert run(choice, later, count=2 * FIRST_PAUSE) == [2] * 2 * FIRST_PAUSE
    tried = run(choice, later, count=10 * LONGEST_PAUSE).count(1)
    assert tried <= 25 * TRIAL / 2


def test_runs_that_were_chosen_before_the_turn_changed_are_passed_over() -> None:
    choice = ThreadChoice(2)
    chosen = [choice.choose("a") for _ in range(2 * TRIAL)]
    for threads in chosen:
        choice.learn("a", threads, 100)
    assert choice.choose("a") == 1  # the turn of all has ended, and none of one's has run
    assert run(choice, {1: 50, 2: 100}, count=TRIAL)[-1] == 1


def test_more_shapes_than_are_remembered_run_with_all_threads() -> None:
    choice = ThreadChoice(3)
    for number in range(MOST_SIGNATURES):
        choice.choose(number)
    assert run(choice, {1: 1, 3: 2}, "one too many") == [3] * TRIAL


def test_with_one_thread_there_is_nothing_to_choose() -> None:
    assert ThreadChoice(1).choose("a") == 1


@pytest.mark.parametrize(
    ("available", "times_ns", "expected"),
    [
        (2, {1: 100, 2: 80}, 1.25),
        (2, {1: 100, 2: 99}, 1.0),
        (4, {1: 100, 4: 25}, 2.0),
        (4, {1: 100, 4: 40}, 1.5),
    ],
    ids=["two threads", "one is enough", "all of it is shared", "four fifths of it are"],
)
def test_half_of_the_threads_take_as_many_times_as_long_as_trials_tell(
    available: int, times_ns: dict[int, int], expected: float
) -> None:
    choice = ThreadChoice(available)
    assert choice.stretch("a") == 2.0
    run(choice, times_ns)
    assert choice.stretch("a") == pytest.approx(expected)
    assert choice.stretch("b") == 2.0
