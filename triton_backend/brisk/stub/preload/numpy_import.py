"""Importing numpy in a stub: less of it, and later than Triton's module would.

It is by far the longest import of a stub, which computes nothing with it: it shows Triton's
tensors.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from brisk.lean_numpy import on_demand

if TYPE_CHECKING:
    from brisk.stub.request_handler import RequestHandler

ENVIRONMENT = threading.RLock()
"""Held while this process's environment differs from what it is to hand on."""

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def import_request_handler() -> type[RequestHandler]:
    """The class, and with its module numpy."""
    with ENVIRONMENT, _one_blas_thread(), on_demand():
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
