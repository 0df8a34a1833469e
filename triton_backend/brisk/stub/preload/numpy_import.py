"""Importing numpy in a stub: less of it, and later than Triton's module would.

It is by far the longest import of a stub, which computes nothing with it: it shows Triton's
tensors.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brisk.stub.request_handler import RequestHandler

ENVIRONMENT = threading.RLock()
"""Held while this process's environment differs from what it is to hand on."""

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"

_ON_DEMAND = frozenset(
    {"numpy.ctypeslib", "numpy.fft", "numpy.ma", "numpy.polynomial", "numpy.random"}
)
"""What numpy imports for its users' sake, a third of its time: run at their first use here."""


def import_request_handler() -> type[RequestHandler]:
    """The class, and with its module numpy."""
    with ENVIRONMENT, _one_blas_thread(), _on_demand():
        from brisk.stub.request_handler import RequestHandler
    return RequestHandler


@contextlib.contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Numpy's linear algebra, when it is loaded, starts a thread for each further processor, which
    then keeps that processor from a loading worker for some 50 ms; here it does without, unless
    the user wants otherwise. A runtime that this process starts later inherits nothing of it.
    """
    if _BLAS_THREADS in os.environ:
        yield
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_BLAS_THREADS]


@contextlib.contextmanager
def _on_demand() -> Iterator[None]:
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder:
    """Of the modules _ON_DEMAND; leaves all others to the finders after it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _ON_DEMAND:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec
