"""The lane of machine code: what it finds, and runs that end early for it."""

from __future__ import annotations

import dataclasses
import functools
import time

import pytest
import torch

from brisk.compiled.library import absence, wait_until_settled
from brisk.execution.frame import Frame
from brisk.execution.serial import run_serially
from brisk.exits.calibration import CascadeCount, ExitCount
from brisk.exits.cascade import Cascade, Exit, Level
from brisk.exits.compiled_lookup import CompiledLookUp, ready_look_up
from brisk.exits.exploration.race import race
from brisk.exits.serving.frame import ExitingFrame
from brisk.exits.serving.lane import LookUpLane, Ticket
from brisk.exits.serving.places import find_places
from unit.exits.cascades import Served, finish, images, served, start
from unit.exits.test_compiled_lookup import random_look_up

ALWAYS, NEVER = -1.0, 2.0
SHAPE = (8, 12, 12)


@pytest.fixture(autouse=True, scope="module")
def _executor() -> None:
    if wait_until_settled() is None:
        pytest.skip(f"no executor for look-ups: {absence()}")


@functools.cache
def compiled(threshold: float) -> Served:
    """The network of ``served``, at whose first exit every row scores between -1 and 2."""
    model = served(layers=12, exits=(1, 8))
    first, second = model.cascade.exits
    network = random_look_up("Pool(4096)", first.shape, 10)
    network.gate.limit.fill_(1e9)  # all is near
    network.floor.zero_()
    exits = (
        Exit(first.point, "Pool(4096)", first.shape, network, 1e-4, 1000),
        Exit(second.point, "Pool(4096)", second.shape, network, 1e-4, 1000),
    )
    level = Level(0.97, (threshold, NEVER), model.level.count)
    cascade = dataclasses.replace(model.cascade, exits=exits, levels=(level,))
    places = find_places(model.cut, cascade)
    assert places is not None
    return dataclasses.replace(model, cascade=cascade, places=places)


class PromptLane(LookUpLane):
    """Has found everything by the time the model goes on."""

    def offer(self, ticket: Ticket) -> bool:
        assert isinstance(ticket.look_up, CompiledLookUp)
        asked = ticket.look_up.ask(ticket.hidden, ticket.threshold, may_stop=ticket.may_stop)
        assert asked is not None
        rows = len(ticket.rows)
        asked.library.look_up(asked.address, asked.hidden.data_ptr(), rows, ticket.threshold)
        ticket.asked = asked
        return True


@pytest.mark.parametrize("rows", [1, 5])
def test_a_run_ends_where_a_look_up_answers_all_of_it(rows: int) -> None:
    model, inputs = compiled(ALWAYS), images(rows)
    expected = finish(start(model, inputs, None))["scores"]
    frame = start(model, inputs, PromptLane())
    torch.testing.assert_close(finish(frame)["scores"], expected, rtol=1e-5, atol=1e-6)
    assert [answer.exit_index for answer in frame.answers] == [0]
    assert frame.looked == [rows, 0], "the second exit has never been reached"


def test_a_run_goes_on_where_nothing_or_not_all_is_answered() -> None:
    inputs = images(5)
    model = compiled(NEVER)
    expected = run_serially(model.whole, {"image": inputs})["scores"]
    frame = start(model, inputs, PromptLane())
    torch.testing.assert_close(finish(frame)["scores"], expected, rtol=1e-3, atol=1e-4)
    assert [answer.exit_index for answer in frame.answers] == [None]
    scores = sorted(_scores(model, inputs))
    some = compiled((scores[2] + scores[3]) / 2)
    by_thread, beside = start(some, inputs, None), start(some, inputs, PromptLane())
    torch.testing.assert_close(
        finish(beside)["scores"], finish(by_thread)["scores"], rtol=1e-3, atol=1e-4
    )
    answered = {row for answer in beside.answers for row in answer.rows if answer.exit_index == 0}
    assert len(answered) == 2


def _scores(model: Served, inputs: torch.Tensor) -> list[float]:
    """Of the first exit."""
    exit_ = model.cascade.exits[0]
    with torch.inference_mode():
        frame = Frame(model.cut, {"image": inputs})
        while frame.layers_done < exit_.point.position:
            frame.step()
        hidden = frame.value_at(model.places.exits[exit_.point.position][0][1])
    assert isinstance(hidden, torch.Tensor)
    return list(exit_.look_up(hidden).scores)


@pytest.mark.parametrize("synchronous", [True, False])
def test_two_caches_at_one_boundary_answer_one_after_the_other(synchronous: bool) -> None:
    """The second sees what the first has missed, and nothing where that is nothing."""
    inputs, model = images(5), compiled(ALWAYS)
    first, later = model.cascade.exits
    scores = sorted(_scores(model, inputs))
    exits = (first, dataclasses.replace(first, variant="Pool(8192)"), later)
    count = CascadeCount(5, (ExitCount(0, 0),) * 3, 0)

    def run(threshold: float) -> ExitingFrame:
        level = Level(0.97, (threshold, ALWAYS, NEVER), count)
        cascade = dataclasses.replace(model.cascade, exits=exits, levels=(level,))
        places = find_places(model.cut, cascade)
        assert places is not None
        lane = None if synchronous else PromptLane()
        frame = ExitingFrame(model.cut, cascade, places, level, lane, {"image": inputs})
        finish(frame)
        return frame

    both = run((scores[2] + scores[3]) / 2)
    taken = {row: answer.exit_index for answer in both.answers for row in answer.rows}
    assert sorted(taken.values()) == [0, 0, 1, 1, 1]  # type: ignore[type-var]
    alone = run(ALWAYS)
    assert {answer.exit_index for answer in alone.answers} == {0}
    if synchronous:
        assert both.looked == [5, 3, 0]
        assert alone.looked == [5, 0, 0]


def test_a_stopped_run_leaves_nothing_behind_for_the_next_one() -> None:
    """Scratch memory and what the thread watches are as before: the model answers the same."""
    inputs = images(1)
    model = compiled(ALWAYS)
    before = run_serially(model.cut, {"image": inputs})["scores"]
    for _ in range(3):
        finish(start(model, inputs, PromptLane()))
        with torch.inference_mode():
            frame = Frame(model.cut, {"image": inputs})
            while not frame.step():
                pass
        assert torch.equal(frame.results()["scores"], before)  # type: ignore[arg-type]


def test_the_lanes_thread_finds_what_this_thread_finds() -> None:
    network = random_look_up("Conv2(3,2)", SHAPE, 10)
    ready, lane = ready_look_up(network, SHAPE), LookUpLane()
    for seed in range(20):
        hidden = torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(seed))
        ticket = Ticket(0, ready, ALWAYS, hidden, (0, 1, 2))
        deadline_s = time.monotonic() + 60
        assert lane.offer(ticket)
        while (outcome := ticket.poll()) is None:
            assert time.monotonic() < deadline_s
        expected = ready(hidden)
        assert outcome.hits == (0, 1, 2)
        assert outcome.logits is not None
        assert torch.equal(outcome.logits, expected.logits)
    lane.close()


def test_what_waits_when_the_lane_is_closed_is_made_first() -> None:
    network = random_look_up("Conv2(3,2)", SHAPE, 10)
    ready, lane = ready_look_up(network, SHAPE), LookUpLane()
    tickets = [Ticket(0, ready, ALWAYS, torch.randn(60, *SHAPE), tuple(range(60)))]
    assert lane.offer(tickets[0])
    while len(tickets) < 20:
        ticket = Ticket(0, ready, ALWAYS, torch.randn(60, *SHAPE), tuple(range(60)))
        if not lane.offer(ticket):
            break
        tickets.append(ticket)
    lane.close()
    assert all(ticket.poll() is not None for ticket in tickets)


def test_frames_that_are_given_up_leave_the_lane_usable() -> None:
    model, inputs = compiled(ALWAYS), images(1)
    lane = LookUpLane()
    for _ in range(30):
        frame = start(model, inputs, lane)
        with torch.inference_mode():
            frame.step()
        del frame
    finish(start(model, inputs, lane))
    lane.close()


def test_a_race_tells_both_ways_and_what_misses_cost() -> None:
    inputs = [{"image": images(1, seed)} for seed in range(50)]

    def side(threshold: float, synchronous: bool) -> Cascade:
        return dataclasses.replace(compiled(threshold).cascade, synchronous=synchronous)

    model = compiled(ALWAYS)
    cascades = [side(ALWAYS, True), side(ALWAYS, False), side(NEVER, True)]
    here, beside, never = race(model.whole, [(model.cut, one) for one in cascades], inputs)
    assert here.hit_rate == 1.0
    assert here.late_s == 0.0
    assert here.is_on_time(0.02)
    assert beside.base_s == here.base_s
    assert never.hit_rate == 0.0
    assert never.is_on_time(None)
    assert not dataclasses.replace(never, late_s=0.03 * never.base_s).is_on_time(0.02)
