"""The process that keeps a view up while its server lives, and removes it behind the server."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from brisk.ownership import make_private
from brisk.view.kernel_events import DirectoryWatch
from brisk.view.mirror import Mirror

_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)
"""What a terminal or an init sends to all processes: the keeper ends with the server."""


def make_root(base: Path) -> tuple[Path, int]:
    """A view's directory under ``base``, where those of dead servers are removed first.

    The descriptor is its lock's: whoever holds it keeps the view from being removed as left.
    Raises OSError, PermissionError where others could change what lies in ``base``.
    """
    make_private(base)
    with open(base / "lock", "a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for left in base.iterdir():
            with contextlib.suppress(OSError):  # its server lives, or it is no view
                os.close(_lock(left))
                shutil.rmtree(left, ignore_errors=True)
        directory = Path(tempfile.mkdtemp(dir=base))
        return directory, _lock(directory)


def _lock(directory: Path) -> int:
    """Raises BlockingIOError where another process has the lock."""
    descriptor = os.open(directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def start_apart(work: Callable[[], None]) -> None:
    """``work`` in a process that is no child of this one, which goes on at once.

    This process becomes a server, which waits for none of our children.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    middle = os.fork()
    if not middle:
        try:
            if not os.fork():
                work()
        except BaseException as error:  # noqa: BLE001  # nobody else would tell of it
            _say(f"{type(error).__name__}: {error}")
        finally:
            os._exit(0)
    os.waitpid(middle, 0)


def keep(
    root: Path,
    repositories: Sequence[Path],
    served: Sequence[str],
    server: int,
    period_s: float | None,
) -> None:
    """Until the process of the descriptor ``server`` has ended.

    ``period_s``: of looking at all entries, for changes that the kernel does not tell; None where
    the server never looks at its repositories again.
    """
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    try:
        if period_s is None:
            select.select([server], [], [])
        else:
            watch = DirectoryWatch()
            _keep_up(Mirror(root, repositories, served, watch), watch, server, period_s)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _keep_up(mirror: Mirror, watch: DirectoryWatch, server: int, period_s: float) -> None:
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGIO, lambda *_: None)  # before the first lease: it would end us
    poll = select.poll()
    for descriptor in (server, reading, watch.descriptor):
        if descriptor >= 0:  # a kernel may have no inotify
            poll.register(descriptor, select.POLLIN)
    ready: set[int] = set()
    lost: set[tuple[Path, str]] = set()
    told: set[tuple[Path, str]] = set()
    while server not in ready:
        try:
            mirror.serve_readers()  # always: they wait
            if watch.descriptor in ready:
                mirror.take_changes()
            elif not ready:
                mirror.refresh()
                before, lost = lost, set(mirror.lost().items())
                # Of an entry that was there at the last look, too: not one that is being written.
                for entry, why in sorted((lost & before) - told):
                    told.add((entry, why))
                    _say(
                        f"'{entry}' relies on Triton's auto-completion, which is switched off "
                        f"({why}): complete its config.pbtxt, or start with --no-complete-entries"
                    )
        except OSError as error:
            _say(f"the view of the model repositories lags behind: {error}")
        ready = {descriptor for descriptor, _ in poll.poll(period_s * 1000)}
        if reading in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(reading, 4096)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"brisk: {text}", file=sys.stderr, flush=True)
