"""Work in a thread that is less urgent than what serves requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from brisk.os_priority import LOADING, lower_thread

_Result = TypeVar("_Result")


class _Work(Generic[_Result]):
    """``outcome`` is empty until the work has ended without an exception."""

    def __init__(self, call: Callable[[], _Result]) -> None:
        self._call = call
        self.outcome: list[_Result] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        lower_thread(LOADING)
        try:
            self.outcome.append(self._call())
        except BaseException as error:  # noqa: BLE001  # the caller's thread raises it
            self.error = error


def standing_back(call: Callable[[], _Result]) -> _Result:
    """Run ``call`` in a nicer thread of its own; return or raise what it does.

    Threads that it starts inherit its niceness. A new thread each time, because one that has
    become nicer needs a privilege to come back.
    """
    work = _Work(call)
    thread = threading.Thread(target=work.run, name="brisk-standing-back", daemon=True)
    thread.start()
    thread.join()
    if work.error is not None:
        raise work.error
    return work.outcome[0]
