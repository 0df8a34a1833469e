"""Look-up networks made of their description, and their weights as arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from brisk.exits.container import DamagedFileError
from brisk.exits.gate import DistanceGate, summary
from brisk.exits.lookup import LookUp, Selector
from brisk.exits.variants import Shape, variant


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
