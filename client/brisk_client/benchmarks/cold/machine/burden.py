"""Other work on the machine while a model starts (NNV12, section 4.2, dynamic loads)."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_PERIOD_S = 0.01


@dataclass(frozen=True, slots=True)
class Load:
    """Of the machine: ``cores`` of it (0: all usable) are busy for ``share`` of the time."""

    share: float
    cores: int = 0

    @property
    def name(self) -> str:
        if not self.share:
            return "nothing"
        where = f"{self.cores} core" if self.cores else "each core"
        return f"{self.share:.0%} of {where}"


class Burden:
    """Keeps cores busy for the load's share of each 10 ms; a context manager.

    One process a core, pinned to it, so that the kernel cannot move the work away.
    """

    def __init__(self, load: Load) -> None:
        self._share = load.share
        self._cores = load.cores
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Burden:
        if self._share > 0:
            cores = sorted(os.sched_getaffinity(0))
            for core in cores[-self._cores :]:  # the last ones; all for 0
                command = [sys.executable, "-S", __file__, str(core), str(self._share)]
                self._processes.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            for process in self._processes:
                assert process.stdout is not None
                process.stdout.readline()  # it burns from here on
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


def _burn(core: int, share: float) -> None:
    import time

    os.sched_setaffinity(0, {core})
    print("burning", flush=True)
    parent = os.getppid()
    while os.getppid() == parent:  # it ends with the benchmark, however that ends
        until_s = time.perf_counter() + share * _PERIOD_S
        while time.perf_counter() < until_s:
            pass
        time.sleep((1 - share) * _PERIOD_S)


if __name__ == "__main__":
    _burn(int(sys.argv[1]), float(sys.argv[2]))


# A small network that has nothing to do with those that are measured.
#
# Each engine starts it once, in the process of the sample and by the means that are measured, so
# that no engine's first start of all is compared with another's second.

SIDE, CLASSES = 32, 16


def write_unrelated(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Write it into ``folder``; the file, and inputs for it."""
    random = np.random.default_rng(7)
    shapes = {
        "stem": (16, 3, 3, 3),
        "scale": (16,),
        "shift": (16,),
        "mean": (16,),
        "spread": (16,),
        "mix": (32, 16, 1, 1),
        "wide": (32, 64),
        "out": (64, CLASSES),
    }
    weights = [
        numpy_helper.from_array(np.abs(random.standard_normal(shape)).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "stem"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "scale", "shift", "mean", "spread"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["d", "mix"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Flatten", ["f"], ["g"]),
        helper.make_node("MatMul", ["g", "wide"], ["h"]),
        helper.make_node("Sigmoid", ["h"], ["i"]),
        helper.make_node("Gemm", ["i", "out"], ["j"]),
        helper.make_node("Softmax", ["j"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "unrelated",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CLASSES])],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    file = folder / "unrelated.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), file)
    return file, {"x": random.standard_normal((1, 3, SIDE, SIDE)).astype(np.float32)}
