"""What the worker does for torch where that computes; nothing where it was never imported."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType

from brisk.errors import UnavailableError

_torch: ModuleType | None = None


def import_torch(threads: int) -> None:
    """Have torch ready, to compute with ``threads``; any thread, any number of times.

    Raises UnavailableError where it is not installed.
    """
    global _torch
    if _torch is not None:
        return
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UnavailableError(
            f"models on a GPU are computed by torch, which {sys.executable} does not have: "
            "pip install 'brisk-triton[gpu]'"
        ) from error

    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = False  # answers agree with the CPU's, in full float32
    torch.backends.cuda.matmul.allow_tf32 = False
    _torch = torch


def inference() -> contextlib.AbstractContextManager[object]:
    """While entered, the calling thread's tensors remember nothing of how they were made."""
    return contextlib.nullcontext() if _torch is None else _torch.inference_mode()


def synchronise() -> None:
    """Wait for what the calling thread has issued to a GPU, if anything."""
    if _torch is not None and _torch.cuda.is_initialized():
        _torch.cuda.current_stream().synchronize()
