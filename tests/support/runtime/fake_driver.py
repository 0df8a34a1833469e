"""The stand-in for NVIDIA's driver of ``tools/gpu``, built once a session of tests."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from brisk.gpu.driver import Context, DeviceMemory, Stream
from support.runtime.compiled import compile_shared

SOURCE = Path(__file__).resolve().parents[3] / "tools" / "gpu" / "fake_driver.c"


@functools.cache
def fake_driver() -> str:
    """Return the path of the library. Skips the test where there is no C compiler."""
    library = Path(tempfile.mkdtemp(prefix="brisk-driver-")) / "libfake.so"
    return str(compile_shared(library, SOURCE.read_text()))


CAPTURED = 3
"""The number of the run that is captured: the first finds the shapes, the second the answer."""


class CopyingSession:
    """Computes ``y = x`` on a device by copies, run like a session of ONNX Runtime: what it issues
    can be captured, and seen to have been done or not."""

    def __init__(
        self, context: Context, stream: Stream, steps: int = 5, refuses: str | None = None
    ) -> None:
        """Issue ``steps`` copies in a run, each from one scratch place to the next.

        ``refuses``: the error of a run that is captured.
        """
        self.context, self.stream, self.steps, self.refuses = context, stream, steps, refuses
        self.runs = 0
        self.scratch: list[DeviceMemory] = []
        self.is_wrong_when_captured = False

    def io_binding(self) -> CopyingBinding:
        return CopyingBinding()

    def get_outputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name="y", type="tensor(float)")]

    def run_with_iobinding(self, binding: CopyingBinding, options: object) -> None:
        self.runs += 1
        if self.refuses and self.runs == CAPTURED:
            raise RuntimeError(self.refuses)
        source, shape = binding.inputs["x"]
        size = 4 * int(np.prod(shape))
        target = binding.outputs["y"]
        if target is None:
            self.scratch.append(self.context.allocate(size))
            binding.shape, target = shape, self.scratch[-1].handle
        copy = self.context.driver.call
        between = [self.context.allocate(size) for _ in range(self.steps - 1)]
        self.scratch += between
        places = [source, *(memory.handle for memory in between)]
        if self.is_wrong_when_captured and self.runs == CAPTURED:
            places[0] = places[-1]
        for one, other in zip(places, [*places[1:], target], strict=True):
            copy("cuMemcpyDtoDAsync_v2", other, one, size, self.stream.handle)


class CopyingBinding:
    def __init__(self) -> None:
        self.inputs: dict[str, tuple[int, tuple[int, ...]]] = {}
        self.outputs: dict[str, int | None] = {}
        self.shape: tuple[int, ...] = ()
        """The shape of the output that the session has allocated itself."""

    def bind_input(
        self, name: str, device: str, ordinal: int, dtype: object, shape: tuple[int, ...], at: int
    ) -> None:
        self.inputs[name] = at, shape

    def bind_output(
        self,
        name: str,
        device: str,
        ordinal: int = 0,
        dtype: object = None,
        shape: tuple[int, ...] = (),
        at: int | None = None,
    ) -> None:
        self.outputs[name] = at

    def clear_binding_outputs(self) -> None:
        self.outputs.clear()

    def get_outputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(shape=lambda: list(self.shape))]
