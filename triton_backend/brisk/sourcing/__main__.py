"""``python -m brisk.sourcing``: become the courier of this host, or end if one already runs."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from brisk.copies.connection import lock_path, socket_path
from brisk.errors import BriskError
from brisk.ownership import make_private
from brisk.posix import raise_file_limit
from brisk.sourcing.log import LOGGER, start_logging

_TRUST = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}


def main() -> int:
    """Run the courier. Return the exit status: 0 if it ended idle or another courier runs, 1 if it
    cannot run."""
    start_logging()
    _leave_process_group()
    try:
        make_private(lock_path().parent)
        with _locked(lock_path()) as is_ours:
            if not is_ours:
                return 0
            raise_file_limit()  # each client and peer takes a socket, each copy its files
            with _without_certificates():
                # what only a courier needs
                from brisk.sourcing.process import read_settings, run

            with contextlib.suppress(FileNotFoundError):
                socket_path().unlink()
            asyncio.run(run(socket_path(), read_settings()))
    except (BriskError, ImportError, OSError) as error:
        LOGGER.error(f"cannot start: {error}")
        return 1
    return 0


@contextlib.contextmanager
def _without_certificates() -> Iterator[None]:
    """Hide the machine's certificates while aiohttp is imported.

    On import, aiohttp reads all certificates that the machine trusts, for contexts of its own.
    This takes a third of the courier's start. The courier makes its own context when it needs one
    (``sources.downloads``).
    """
    before = {name: os.environ.get(name) for name in _TRUST}
    os.environ.update(_TRUST)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _leave_process_group() -> None:
    """Leave the starter's process group, to outlive the starter and signals to its group or
    terminal; stay in its session (``brisk.runtime``'s ``leave_process_group`` says why)."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with contextlib.suppress(PermissionError):  # it leads a session that its starter made
        os.setpgid(0, 0)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):
            socket_path().unlink()
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
