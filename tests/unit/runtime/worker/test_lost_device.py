"""A GPU's error behind which nothing of the process can use it any more, told from any other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from brisk.errors import InvalidRequestError
from brisk.runtime.worker import device


def torch(*, is_initialized: bool = True, is_lost: bool) -> SimpleNamespace:
    """As much of it as is asked: to wait for the device raises where the context is gone."""

    def synchronize() -> None:
        if is_lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    cuda = SimpleNamespace(is_initialized=lambda: is_initialized, synchronize=synchronize)
    return SimpleNamespace(cuda=cuda)


@pytest.mark.parametrize(
    ("present", "error", "expected"),
    [
        (None, RuntimeError("anything"), False),
        (torch(is_initialized=False, is_lost=True), RuntimeError("anything"), False),
        (torch(is_lost=False), RuntimeError("a shape that fits not"), False),
        (torch(is_lost=True), RuntimeError("CUDA error: 700"), True),
        (torch(is_lost=True), InvalidRequestError("a bad request"), False),
    ],
)
def test_a_lost_device_is_one_that_cannot_even_be_waited_for(
    monkeypatch: pytest.MonkeyPatch, present: object, error: Exception, expected: bool
) -> None:
    monkeypatch.setattr(device, "_torch", present)
    assert device.has_lost_device(error) is expected
