"""The program in the host of ``brisk bench streamed``: one start for each line that it reads.

A start is a new server with an empty cache, which serves another model and has its courier, then
the load of an entry, its first answer and its warm ones. The clock starts when the load is asked
for; what is downloaded before a load counts, too.
"""

from __future__ import annotations

import shutil
import sys
import time
import urllib.request
from collections.abc import Mapping
from typing import Any

from brisk_bench.engines.case import Case, case_of
from brisk_bench.fleet.remote_entries import ENTRY, remote_host
from brisk_bench.harness.programs import answer_each
from brisk_bench.harness.served_entries import write_brisk_entry
from brisk_bench.harness.served_server import FAILURES


def main(model: str) -> None:
    """Answer the lines. A failure ends the program with one message."""
    case = case_of(model)
    answer_each(lambda **told: start(case, told), FAILURES)


def start(case: Case, told: Mapping[str, Any]) -> dict[str, Any]:
    """Start once by ``told``: ``remote``, the text of an entry's ``model.remote``, or ``url``, of
    a model to download.

    Returns seconds from the ask to the last byte and the first answer; of a warm answer; of the
    same again when it is unloaded and loaded once more, from what is here now.
    """
    with remote_host() as host:
        if "url" in told:
            write_brisk_entry(host.repository, case.file, ENTRY, {})
            file = host.repository / ENTRY / "1" / "model.onnx"
            file.unlink()
            begun_s = time.perf_counter()
            with urllib.request.urlopen(told["url"]) as response, open(file, "wb") as target:
                shutil.copyfileobj(response, target, 1 << 20)
            last_s = time.perf_counter() - begun_s
            host.client.load_model(ENTRY)
            ready_s = time.perf_counter() - begun_s
            first_s = host.ask(case, 1)[0][1] - begun_s
        else:
            started = host.start_remote(case, told["remote"])
            ready_s, last_s, first_s = started.ready_s, started.last_s, started.first_s
        warm_s = host.warm_s(case)
        host.unload()
        again_s = host.start(case)
    return {
        "ready_s": ready_s,
        "last_s": last_s,
        "first_s": first_s,
        "warm_s": warm_s,
        "again_s": again_s,
    }


if __name__ == "__main__":
    main(sys.argv[1])
