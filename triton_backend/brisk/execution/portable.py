"""Programs that are a single run of small layers, as data for another process."""

from __future__ import annotations

from brisk.execution.joining import JoinedLayers
from brisk.execution.loading import LoadedProgram
from brisk.native.portable import PortableNetwork, make_portable
from brisk.native.run import SmallRun


def portable_program(
    loaded: LoadedProgram, joined: JoinedLayers | None, longest_ns: float
) -> PortableNetwork | None:
    """All of ``loaded`` as ``make_portable`` says; None where it is more than one run."""
    if joined is None or len(joined.layers) != 1:
        return None
    (layer,) = joined.layers
    inputs = {slot.index: slot.variable.name for slot in loaded.inputs}
    outputs = {index: name for name, index in loaded.outputs.items()}
    is_all = set(layer.reads) == set(inputs) and set(layer.writes) == set(outputs)
    if not isinstance(layer.kernel, SmallRun) or not is_all or len(outputs) < len(loaded.outputs):
        return None
    return make_portable(
        layer.kernel,
        [inputs[index] for index in layer.reads],
        [outputs[index] for index in layer.writes],
        longest_ns,
    )
