"""Look-up networks made of their description, and their weights as arrays."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from onnx import numpy_helper

from brisk.exits.files.container import DamagedFileError
from brisk.exits.heads.distance_gate import DistanceGate, summary
from brisk.exits.heads.lookup import LookUp, Selector, SoftmaxLookUp
from brisk.exits.heads.lookup_model import LOGITS, Shape, parse
from brisk.exits.variants import variant

if TYPE_CHECKING:
    from brisk.exits.cascade import Exit


def empty_look_up(name: str, shape: Shape, classes: int) -> LookUp:
    """An untrained look-up in the form that is served."""
    kind = variant(name)
    example = torch.zeros(1, *shape)
    gate = DistanceGate(summary(example).shape[1], classes)
    network = LookUp(kind.build_settled(shape, classes), Selector(classes), gate)
    return network.eval().requires_grad_(False)


def check_weights(
    name: str, shape: Shape, classes: int, tensors: Mapping[str, np.ndarray]
) -> None:
    """That ``tensors`` are those of such a look-up, before any memory is taken for it.

    Raises DamagedFileError where they are not, RuntimeError where there can be none.
    """
    if not shape or classes < 1 or not all(size >= 1 for size in shape):
        raise DamagedFileError(f"a look-up of {classes} classes in {shape}")
    with torch.device("meta"):
        wanted = empty_look_up(name, shape, classes).state_dict()
    one = (1,)  # a number is written as an array of one
    expected = {each: tuple(tensor.shape) or one for each, tensor in wanted.items()}
    if expected != {each: array.shape or one for each, array in tensors.items()}:
        raise DamagedFileError("its tensors are not those of the variant")


def load_weights(network: LookUp, tensors: Mapping[str, np.ndarray]) -> None:
    """Raises DamagedFileError where the tensors are not those of ``network``."""
    state = {name: torch.tensor(array) for name, array in tensors.items()}
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise DamagedFileError(f"its tensors are not those of the variant: {error}") from error
    network.gate.round()


def weights_of(network: LookUp) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in network.state_dict().items()}


@functools.lru_cache(maxsize=64)
def network_of(exit_: Exit) -> LookUp:
    """The network of a cache, from its ONNX model, for training to go on from.

    Not to be changed: it is the same object each time. Raises DamagedFileError where the model is
    not what this version writes.
    """
    model = parse(exit_.model)
    tensors = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if not tensor.name.startswith("constant.")
    }
    [classes] = [
        info.type.tensor_type.shape.dim[1].dim_value
        for info in model.graph.output
        if info.name == LOGITS
    ]
    network = empty_look_up(exit_.variant, exit_.shape, classes)
    if "floor" not in tensors:  # its softmax alone decides
        predictor = {
            name.removeprefix("predictor."): torch.tensor(array) for name, array in tensors.items()
        }
        network.predictor.load_state_dict(predictor)
        return SoftmaxLookUp(network.predictor, network.selector, network.gate).eval()
    check_weights(exit_.variant, exit_.shape, classes, tensors)
    load_weights(network, tensors)
    return network
