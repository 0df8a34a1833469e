"""Waiting until a worker's kernels stay: before that, answers to equal inputs may differ in bits.

A program starts on what loads quickest and gets its warm kernels while nothing runs; those sum in
another order.
"""

from __future__ import annotations

import time

from brisk.observer import Observer
from brisk.protocol.runtime_paths import RuntimePaths, role_of

_TIMEOUT_S = 300.0
"""The library may have to be compiled first, on processors that others leave."""
_LOOK_S = 0.05


def wait_until_settled(place: RuntimePaths, model: str, job_class: str, alias: str = "") -> None:
    """Until the worker of ``job_class`` exchanges no kernel of ``model`` any more.

    ``alias``: another entry of the same file; a worker that has both lists one of the names.
    Precondition: it was asked for the model. TimeoutError where that takes five minutes.
    """
    names = (model, alias)
    until_s = time.monotonic() + _TIMEOUT_S
    with Observer(place, role_of(job_class)) as observer:
        while not any(each.name in names and each.is_settled for each in observer.status().models):
            if time.monotonic() > until_s:
                raise TimeoutError(f"the {job_class} kernels of '{model}' do not settle")
            time.sleep(_LOOK_S)
