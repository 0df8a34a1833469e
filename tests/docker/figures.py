"""As a program, in the image: Brisk's times over ONNX Runtime's for each model in a folder.

``python3 figures.py FOLDER`` prints them as JSON, by entry: ``warm``, of a run; ``start``, from
the prepared form to the first answer over ONNX Runtime's from the file at its defaults. Sides in
turns, medians, all in this process.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ["BRISK_CACHE_DIR"] = tempfile.mkdtemp()

import numpy as np
import onnxruntime

from brisk.segments.frame import run_serially
from brisk.segments.prepared.form import PreparedModel
from brisk.segments.prepared.preparation import prepare
from brisk.segments.starting import StartingSegments, start_lanes, start_segments

THREADS = len(os.sched_getaffinity(0))
ROUNDS, ROUND_S = 5, 0.5


def inputs_of(session: onnxruntime.InferenceSession) -> dict[str, np.ndarray]:
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    return {
        each.name: np.ones(
            [size if isinstance(size, int) else 1 for size in each.shape], kinds[each.type]
        )
        for each in session.get_inputs()
    }


def seconds_of(call: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    call()
    return time.perf_counter() - begun_s


def default_session(model: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def figures(model: Path) -> dict[str, float]:
    prepared = prepare(model, THREADS).path
    peer = default_session(model)
    inputs = inputs_of(peer)

    def start() -> StartingSegments:
        started = start_segments(PreparedModel(prepared, model, THREADS))
        start_lanes(started.table, THREADS)
        run_serially(started.program, inputs)
        return started

    starts = [
        seconds_of(start) / seconds_of(lambda: default_session(model).run(None, inputs))
        for _ in range(ROUNDS)
    ]
    ours = start()
    ours.load_warm(lambda: True)
    sides = (lambda: run_serially(ours.program, inputs), lambda: peer.run(None, inputs))
    ratios = []
    for _ in range(ROUNDS):
        taken = []
        for side in sides:
            until_s, times = time.perf_counter() + ROUND_S, [seconds_of(side)]
            while time.perf_counter() < until_s:
                times.append(seconds_of(side))
            taken.append(median(times))
        ratios.append(taken[0] / taken[1])
    return {"warm": round(median(ratios), 3), "start": round(median(starts), 3)}


if __name__ == "__main__":
    found = sorted(Path(sys.argv[1]).glob("*/1/model.onnx"))
    print(json.dumps({model.parents[1].name: figures(model) for model in found}))
