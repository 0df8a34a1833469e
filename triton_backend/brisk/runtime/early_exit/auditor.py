"""Asks a process that runs whole models at best-effort priority; nobody waits for it.

A thread of its own writes questions and reads answers, one at a time. The process is started for
the first question, ends by itself when there were none for long, and is started again for the
next.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from brisk.runtime.log import say

if TYPE_CHECKING:
    from brisk.exits.scores import Scores

MOST_WAITING = 8
"""Questions that wait; while so many do, no more are asked."""

RESTART_S = 10.0
"""From the start of a process that failed to that of the next one."""

Context = TypeVar("Context")


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Which classes the whole model gives to the rows of ``inputs``; ``digest`` is the model's."""

    model: Path
    digest: str
    scores: Scores
    inputs: Mapping[str, np.ndarray]


class Auditor(Generic[Context]):
    """``ask`` and ``take`` are one thread's; the rest happens in the auditor's own."""

    def __init__(self) -> None:
        self._questions: queue.SimpleQueue[tuple[Question, Context]] = queue.SimpleQueue()
        self._verdicts: deque[tuple[Context, list[int]]] = deque()
        self._asked = 0
        self._answered = 0
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = -RESTART_S

    @property
    def has_room(self) -> bool:
        return self._asked - self._answered < MOST_WAITING

    def ask(self, question: Question, context: Context) -> None:
        """``take`` returns ``context`` with the classes when they are there."""
        self._asked += 1
        self._questions.put((question, context))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="brisk-auditor", daemon=True)
            self._thread.start()

    def take(self) -> tuple[Context, list[int]] | None:
        """An answer that has come; no classes where there is none to be had."""
        return self._verdicts.popleft() if self._verdicts else None

    def _run(self) -> None:
        """The kernel ends the process with this thread, which lives as long as the worker."""
        while True:
            question, context = self._questions.get()
            classes: list[int] = []
            try:
                classes = self._classes(question)
            except (OSError, ValueError) as error:
                say(f"an audit of {question.model} failed: {error}")
                self.end()
            self._verdicts.append((context, classes))
            self._answered += 1

    def _classes(self, question: Question) -> list[int]:
        """Raises OSError and ValueError where the process does not answer."""
        if self._process is not None and self._process.poll() is not None:
            self.end()  # it was idle for long
        if self._process is None:
            time.sleep(max(0.0, self._started_s + RESTART_S - time.monotonic()))
            self._started_s = time.monotonic()
            command = [sys.executable, "-m", "brisk.runtime.early_exit.audit_process"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        given, told = self._process.stdin, self._process.stdout
        assert given is not None
        assert told is not None
        given.write(json.dumps(header_of(question)).encode() + b"\n")
        for array in question.inputs.values():
            given.write(np.ascontiguousarray(array).data)
        given.flush()
        line = told.readline()
        if not line:
            raise OSError(f"its process ended with status {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            say(f"an audit of {question.model} failed: {answer['error']}")
        return [int(each) for each in answer.get("classes", ())]

    def end(self) -> None:
        """End the process, if there is one; the auditor's own thread, or nobody is served."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(BrokenPipeError), self._process:
                self._process = None


def header_of(question: Question) -> dict[str, object]:
    """What is said of a question before the bytes of its inputs, in their order."""
    scores = question.scores
    return {
        "model": str(question.model),
        "digest": question.digest,
        "scores": [scores.value, scores.position, scores.classes, scores.form.value],
        "inputs": [
            [name, array.dtype.name, list(array.shape)] for name, array in question.inputs.items()
        ],
    }
