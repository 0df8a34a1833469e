"""Class and deadline on tritonclient's calls."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from brisk_client.urgency import infer, options


def test_class_and_deadline_become_a_parameter_and_the_standard_timeout() -> None:
    assert options("realtime", 0.05) == {
        "parameters": {"brisk_class": "realtime"},
        "timeout": 50_000,
    }


def test_nothing_said_adds_nothing() -> None:
    assert options() == {}


def test_other_parameters_travel_along_and_are_not_changed() -> None:
    given = {"mine": 3}
    assert options("normal", parameters=given)["parameters"] == {
        "mine": 3,
        "brisk_class": "normal",
    }
    assert given == {"mine": 3}


def test_a_misspelt_class_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"no class 'realtme'.*did you mean 'realtime'"):
        options("realtme")
    with pytest.raises(ValueError, match=r"no class 'Realtime'.*did you mean 'realtime'"):
        options(parameters={"brisk_class": "Realtime"})


def test_a_class_said_twice_differently_is_refused() -> None:
    with pytest.raises(ValueError, match="'normal' contradicts parameter brisk_class 'realtime'"):
        options("normal", parameters={"brisk_class": "realtime"})


@pytest.mark.parametrize("deadline_s", [0.0, -1.0, float("nan"), float("inf"), 1e7])
def test_a_deadline_is_a_positive_time(deadline_s: float) -> None:
    with pytest.raises(ValueError, match="deadline is a positive number of seconds"):
        options(deadline_s=deadline_s)


def test_a_very_short_deadline_is_not_rounded_to_none_at_all() -> None:
    assert options(deadline_s=1e-9)["timeout"] == 1


@pytest.mark.parametrize(
    "module",
    [tritonclient.grpc, tritonclient.http, tritonclient.grpc.aio, tritonclient.http.aio],
)
def test_every_client_of_tritonclient_takes_the_options(module: Any) -> None:
    accepted = inspect.signature(module.InferenceServerClient.infer).parameters
    assert set(options("realtime", 1.0)) <= set(accepted)


class _Client:
    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def infer(self, model: str, inputs: Any, **others: Any) -> Any:
        self.asked.append((model, inputs, others))
        return "answer"


class _AsyncClient(_Client):
    async def infer(self, model: str, inputs: Any, **others: Any) -> Any:
        return super().infer(model, inputs, **others)


def test_infer_passes_everything_on() -> None:
    client = _Client()
    assert infer(client, "m", [1], job_class="besteffort", request_id="7") == "answer"
    expected = {"parameters": {"brisk_class": "besteffort"}, "request_id": "7"}
    assert client.asked == [("m", [1], expected)]


def test_infer_of_an_asyncio_client_is_awaited() -> None:
    client = _AsyncClient()

    async def ask() -> Any:
        return await infer(client, "m", [], deadline_s=2.0)

    assert asyncio.run(ask()) == "answer"
    assert client.asked[0][2] == {"timeout": 2_000_000}


def test_a_deadline_and_a_timeout_together_are_refused_before_anything_is_sent() -> None:
    client = _Client()
    with pytest.raises(ValueError, match="not both"):
        infer(client, "m", [], deadline_s=2.0, timeout=5)
    assert not client.asked
