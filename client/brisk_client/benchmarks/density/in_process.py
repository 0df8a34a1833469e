"""What a session of ONNX Runtime holds of its own, with its defaults: run as a program.

``python -m brisk_client.benchmarks.density.in_process FILE THREADS`` prints dirty private bytes,
those of after the first answer less those of before the session.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from brisk_client.benchmarks.density.memory import own_bytes
from brisk_client.benchmarks.engines.model_inputs import NOTHING_GIVEN, make_inputs


def main() -> None:
    import onnxruntime

    file, threads = Path(sys.argv[1]), int(sys.argv[2])
    inputs = {
        name: np.asarray(array) for name, array in make_inputs(file, {}, NOTHING_GIVEN).items()
    }
    before = own_bytes()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    session.run(None, inputs)
    print(own_bytes() - before)


if __name__ == "__main__":
    main()
