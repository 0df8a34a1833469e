"""A courier that always takes the prepared form of a model, whatever its size.

    python -m brisk_bench.sourcing.forced_courier

All else is the courier's own. It goes on in a process of its own; this one ends when it answers.
"""

from __future__ import annotations

import subprocess
import sys
import time

from brisk.copies.connection import START_TIMEOUT_S, is_there
from brisk.sourcing import __main__ as courier
from brisk.sourcing.policies import worth

SERVING = "serve"


def main() -> None:
    command = [sys.executable, "-m", "brisk_bench.sourcing.forced_courier", SERVING]
    started = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    until_s = time.monotonic() + START_TIMEOUT_S
    while not is_there():
        if started.poll() is not None or time.monotonic() > until_s:
            raise SystemExit("the courier does not start")
        time.sleep(0.02)


def serve() -> int:
    """Run the courier as if a start from weights never ended, so that a form comes sooner."""
    if not hasattr(worth, "RAW_START_S"):
        raise SystemExit("the courier chooses by something else")
    worth.RAW_START_S = float("inf")
    return courier.main()


if __name__ == "__main__":
    if sys.argv[1:] == [SERVING]:
        sys.exit(serve())
    main()
