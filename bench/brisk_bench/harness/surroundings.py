"""The environment of a benchmark's own runtime, when its models are warm, and its end."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping

from brisk.protocol.runtime_paths import ROLE_OF_CLASS, RuntimePaths
from brisk.telemetry.observer import Observer

_END_TIMEOUT_S = 120.0
_SETTLE_TIMEOUT_S = 300.0
_LOOK_S = 0.05


@contextlib.contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Change this process's environment while entered, for a runtime started within."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def wait_until_gone(place: RuntimePaths) -> None:
    """Wait until the runtime has ended and cleaned up, two minutes at most.

    It ends if no client is connected.
    """
    deadline_s = time.monotonic() + _END_TIMEOUT_S
    while place.directory.exists() and time.monotonic() < deadline_s:
        time.sleep(0.02)


def wait_until_settled(place: RuntimePaths, model: str, job_class: str, alias: str = "") -> None:
    """Wait until the worker of ``job_class`` exchanges no more kernels of ``model``.

    A program starts on what loads quickest and gets its warm kernels while nothing runs; those sum
    in another order, so that answers to equal inputs differ in bits. ``alias``: another entry of
    the same file; a worker that has both lists one of the names. Precondition: it was asked for
    the model. Raises TimeoutError after five minutes.
    """
    names = (model, alias)
    until_s = time.monotonic() + _SETTLE_TIMEOUT_S
    with Observer(place, ROLE_OF_CLASS[job_class]) as observer:
        while not any(each.name in names and each.is_settled for each in observer.status().models):
            if time.monotonic() > until_s:
                raise TimeoutError(f"the {job_class} kernels of '{model}' do not settle")
            time.sleep(_LOOK_S)
