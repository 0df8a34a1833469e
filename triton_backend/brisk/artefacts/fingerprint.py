"""What a plan and transformed weights depend on besides the model: machine and libraries."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import sys
from functools import cache
from pathlib import Path

import brisk

_CPU_FIELDS = ("vendor_id", "model name", "flags", "Features", "CPU implementer", "CPU part")


@cache
def machine_fingerprint(device: str, threads: int) -> dict[str, str]:
    """Named parts; artefacts of other ones are foreign. ``threads``: usable cores.

    ``libraries`` are the versions whose data layouts and kernels an artefact relies on; the
    version of oneDNN is that of torch, which carries it.
    """
    return {
        "cpu": processor(),
        "cores": str(threads),
        "device": device,
        "python": platform.python_implementation(),
        "byte order": sys.byteorder,
        "libraries": _libraries(),
        "brisk": brisk.__version__,
        "settings": ", ".join(
            f"{name}={os.environ[name]}"
            for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
            if name in os.environ
        ),
    }


def fingerprint_key(parts: dict[str, str]) -> str:
    """A short name for file names."""
    text = "\n".join(f"{name}: {value}" for name, value in sorted(parts.items()))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@cache
def _libraries() -> str:
    names = ("torch", "numpy", "onnx", "ml_dtypes")
    return ", ".join(f"{name} {_version(name)}" for name in names)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "?"


@cache
def processor() -> str:
    """Vendor, model and a digest of the instruction sets."""
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in _CPU_FIELDS:
                fields.setdefault(name.strip(), " ".join(sorted(value.split())))
            if not line.strip():
                break
    except OSError:
        return platform.machine()
    flags = fields.pop("flags", "") + fields.pop("Features", "")
    digest = hashlib.blake2b(flags.encode(), digest_size=8).hexdigest()
    return f"{platform.machine()} {' '.join(fields.values())} flags {digest}"
