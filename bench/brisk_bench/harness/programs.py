"""Programs that get tasks and answer by lines of JSON on their standard streams: both ends.

The process that runs one has a ``JsonProgram``; the program reads its tasks with ``tasks`` and
answers with ``tell``.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from brisk.errors import UnavailableError

Answer: TypeAlias = Callable[..., "dict[str, Any]"]
"""A function that takes a task's fields and returns the answer's."""

Arguments: TypeAlias = "Sequence[str | os.PathLike[str]]"

_END_TIME_OUT_S = 60.0

_Program = TypeVar("_Program", bound="JsonProgram")


class JsonProgram:
    """A program that runs while entered, then is killed. ``name``: its name in messages.

    Lines that are no JSON object come from a library, and are skipped.
    """

    def __init__(
        self,
        name: str,
        argv: Arguments,
        env: Mapping[str, str] | None = None,
        popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
    ) -> None:
        self._name = name
        self._argv = argv
        self._env = env
        self._popen = popen
        self._rest = b""

    def __enter__(self: _Program) -> _Program:
        self._errors = tempfile.TemporaryFile()  # closed by __exit__
        self.process = self._popen(
            self._argv,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(_END_TIME_OUT_S)

    def say(self, **message: object) -> None:
        """Send the program a task. Raises what ``hear`` does if the program has ended."""
        assert self.process.stdin is not None
        try:
            os.write(self.process.stdin.fileno(), f"{json.dumps(message)}\n".encode())
        except BrokenPipeError:
            raise self._ended() from None

    def hear(self, time_out_s: float) -> dict[str, Any]:
        """Return the next answer. Raises TimeoutError, or UnavailableError if it has ended."""
        assert self.process.stdout is not None
        deadline_s = time.monotonic() + time_out_s
        while True:
            while b"\n" not in self._rest:
                left_s = max(deadline_s - time.monotonic(), 0.0)
                if not select.select([self.process.stdout], [], [], left_s)[0]:
                    raise TimeoutError(f"{self._name} does not answer within {time_out_s:g} s")
                piece = os.read(self.process.stdout.fileno(), 1 << 16)
                if not piece:
                    raise self._ended()
                self._rest += piece
            line, _, self._rest = self._rest.partition(b"\n")
            if line.startswith(b"{"):
                return dict(json.loads(line))

    def _ended(self) -> Exception:
        return self._failure(self.process.wait(_END_TIME_OUT_S), self._last_words())

    def _failure(self, status: int, said: str) -> Exception:
        """Return the error of a program that has ended with ``status`` and wrote ``said``."""
        return UnavailableError(f"{self._name} ended with {status}: {said or 'it said nothing'}")

    def _last_words(self) -> str:
        """Return all that the program has written to its standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()


# The program's own end.


def tasks() -> Iterator[dict[str, Any]]:
    """Yield the tasks on this program's standard input, until that ends."""
    for line in sys.stdin:
        yield json.loads(line)


def tell(**answer: object) -> None:
    """Send an answer, as the program that this process is."""
    print(json.dumps(answer), flush=True)


def answer_each(answer: Answer, failures: tuple[type[Exception], ...]) -> None:
    """Answer one task after the other; one of ``failures`` ends the program, in its words."""
    for task in tasks():
        try:
            tell(**answer(**task))
        except failures as error:
            raise SystemExit(str(error)) from None
