"""Weights whose product with a factor per output channel is computed where it is needed.

Folding a normalisation into a convolution writes its weights anew: 45 ms for ResNet-50's, most of
it page faults, before any layer could run. A deferred product knows dtype and shape at once; the
lane that loads a layer computes it, into memory that the next layer uses again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

LEAST_BYTES = 1 << 16
"""Smaller products are computed at once."""


_READING = frozenset(
    {
        *("astype", "copy", "flatten", "item", "ravel", "reshape", "squeeze", "tobytes", "tolist"),
        *("transpose", "view", "T", "data", "ctypes", "flat", "__array_interface__"),
        *("sum", "min", "max", "any", "all", "mean", "prod"),
    }
)


class ScaledWeights(np.ndarray):
    """``weights * factor``, the factor along the first axis.

    numpy's functions and operators compute it; so does ``computed``. What reads the memory of
    arrays itself (``np.asarray``, ``torch.from_numpy``) needs ``settled`` first: in this memory
    there is NaN only.
    """

    weights: np.ndarray
    factor: np.ndarray

    def __new__(cls, weights: np.ndarray, factor: np.ndarray) -> ScaledWeights:
        """``factor``: (output channels,), of the weights' dtype, a floating one."""
        blank = np.broadcast_to(np.full((), np.nan, weights.dtype), weights.shape)
        made = blank.view(cls)
        made.weights, made.factor = weights, factor
        return made

    def computed(self) -> np.ndarray:
        """The product, in fresh memory."""
        return self.weights * self.factor.reshape(-1, *[1] * (self.weights.ndim - 1))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **named: Any) -> Any:
        return getattr(ufunc, method)(*map(settled, inputs), **named)

    def __array_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Iterable[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        return func(*map(settled, args), **{name: settled(it) for name, it in kwargs.items()})

    def __getitem__(self, place: Any) -> Any:
        return self.computed()[place]

    def __getattribute__(self, name: str) -> Any:
        """Methods that read elements are those of the product."""
        if name in _READING:
            return getattr(self.computed(), name)
        return super().__getattribute__(name)


def settled(array: Any) -> Any:
    """``array``, computed if it is deferred; lists and tuples item by item."""
    if isinstance(array, ScaledWeights):
        return array.computed()
    if isinstance(array, (list, tuple)):
        return type(array)(map(settled, array))
    return array
