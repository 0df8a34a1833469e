"""Engines in processes of their own, which read tasks and answer by lines of JSON.

Only the process that is asked computes; the others wait on their standard input, so that no
engine's threads take time from another's.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from brisk_bench.harness.programs import Answer, JsonProgram, tasks, tell
from brisk_bench.harness.sampling import one_line

_START_TIME_OUT_S = 300.0
_APART_TIME_OUT_S = 900.0

_Child = TypeVar("_Child", bound="EngineChild")


class EngineUnavailableError(Exception):
    """An engine cannot be started with a model, or failed later; the message says why."""


class EngineChild(JsonProgram):
    """A module run as a program by ``answer_tasks``; it runs while entered."""

    def __init__(self, module: str, arguments: list[str], environment: Mapping[str, str]) -> None:
        super().__init__(module, [sys.executable, "-m", module, *arguments], environment)

    def __enter__(self: _Child) -> _Child:
        """Wait until the program says that it is ready. Raises EngineUnavailableError."""
        super().__enter__()
        try:
            self.hear(_START_TIME_OUT_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def ask(self, time_out_s: float, **task: object) -> dict[str, Any]:
        """Return the answer to a task.

        Raises EngineUnavailableError if it is an error or does not come, or the process dies.
        """
        self.say(**task)
        return self.hear(time_out_s)

    def hear(self, time_out_s: float) -> dict[str, Any]:
        try:
            answer = super().hear(time_out_s)
        except TimeoutError:
            raise EngineUnavailableError(f"no answer in {time_out_s:g} s") from None
        if "error" in answer:
            raise EngineUnavailableError(one_line(answer["error"]))
        if "ended" in answer:
            raise self._failure(answer["ended"], self._last_words())
        return answer

    def _failure(self, status: int, said: str) -> Exception:
        """Return an error on how this process, or its child, ended, with the last words."""
        return EngineUnavailableError(one_line(describe_end(status, said)))


def answer_tasks(begin: Callable[[], Answer], *, forks: bool = False) -> None:
    """Run as the child: begin, say so, then answer one task after the other.

    ``forks``: each in a process of its own. All failures are reported, as engines have errors of
      their own.
    """
    try:
        answer = begin()
    except Exception as error:  # noqa: BLE001
        _tell_failure(error)
        return
    tell()
    for task in tasks():
        if forks and (child := os.fork()):
            _, status = os.waitpid(child, 0)
            if status:
                tell(ended=os.waitstatus_to_exitcode(status))
            continue
        try:
            tell(**answer(**task))
        except Exception as error:  # noqa: BLE001
            _tell_failure(error)
        if forks:
            os._exit(0)


def _tell_failure(error: Exception) -> None:
    tell(error=f"{type(error).__name__}: {error}")


def run_apart(
    module: str, *arguments: object, environment: Mapping[str, str] | None = None
) -> str:
    """Return what ``python -m module`` prints.

    Raises EngineUnavailableError with the last line it printed. ``environment`` adds to this
    process's.
    """
    ended = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=_APART_TIME_OUT_S,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    if ended.returncode:
        said = ended.stderr.strip() or ended.stdout.strip()
        lines = said.splitlines() or [f"status {ended.returncode}"]
        raise EngineUnavailableError(lines[-1])
    return ended.stdout


def prepare_apart(model: Path, cache: Path, *options: object) -> None:
    """Run ``brisk prepare`` with that cache directory. Raises EngineUnavailableError."""
    environment = {"BRISK_CACHE_DIR": str(cache)}
    run_apart("brisk.cli", "prepare", model, *options, environment=environment)


def describe_end(status: int, said: str) -> str:
    """Say how a process of this exit status ended, with its last line on standard error."""
    how = f"its process ended with status {status}"
    if status < 0:
        how = f"its process was ended by {signal.Signals(-status).name}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"{how}: {lines[-1]}" if lines else how


def processor_s() -> float:
    """Return user and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
