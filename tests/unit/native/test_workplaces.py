"""A thread with a workplace of its own computes beside the others, and as rightly."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from brisk.compiled.library import absence, wait_until_settled
from brisk.execution.lanes import compute_with
from brisk.execution.workplace import Workplace
from brisk.solutions.compiled_layer import CompiledLayer, Fused, padded_bias, panels
from processors import processor

ROWS, RUNS = 96, 200


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    if wait_until_settled() is None:
        pytest.skip(f"no compiled library: {absence()}")


class Product:
    """A layer of ``width`` inputs and outputs, its input and what torch makes of it."""

    def __init__(self, width: int) -> None:
        source = torch.randn(ROWS, width, generator=torch.Generator().manual_seed(0))
        matrix = torch.randn(width, width, generator=torch.Generator().manual_seed(1))
        weights = {"panels": panels(matrix), "bias": padded_bias(None, width)}
        self._layer = CompiledLayer(weights, width, width, Fused())
        self._source, self._expected = source, source @ matrix

    def check(self) -> None:
        made = self._layer.compute_rows(self._source)
        torch.testing.assert_close(made, self._expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("threads", [1, 2])
def test_both_compute_at_once_what_each_does_alone(threads: int) -> None:
    """Widths differ, so that memory of one's would not do for the other's."""
    mine, other = Product(320), Product(512)
    errors: list[BaseException] = []
    begun = threading.Event()
    places: list[Workplace | None] = []

    def compute() -> None:
        compute_with(threads)
        places.append(Workplace.take(threads))
        begun.set()
        try:
            for _ in range(RUNS):
                other.check()
        except BaseException as error:  # noqa: BLE001  # for the main thread
            errors.append(error)

    thread = threading.Thread(target=compute)
    thread.start()
    assert begun.wait(10)
    while thread.is_alive():
        mine.check()
    thread.join()
    assert not errors
    assert places[0] is not None


def test_its_thread_keeps_off_the_processor_of_who_asks() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one processor only")
    made: list[Workplace | None] = []
    begun, ended = threading.Event(), threading.Event()

    def live() -> None:
        made.append(Workplace.take(1))
        begun.set()
        ended.wait()

    thread = threading.Thread(target=live)
    thread.start()
    try:
        assert begun.wait(10)
        assert made[0] is not None
        for _ in range(20):
            before = processor()
            made[0].part()
            if before == processor():
                assert thread.native_id is not None
                assert before not in os.sched_getaffinity(thread.native_id)
                return
        pytest.fail("the main thread never stayed where it was")
    finally:
        ended.set()
        thread.join()
