"""What a plan and transformed weights depend on besides the model: machine and libraries."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from pathlib import Path

_CPU_FIELDS = ("vendor_id", "model name", "flags", "Features", "CPU implementer", "CPU part")


def fingerprint_key(parts: dict[str, str]) -> str:
    """A short name for file names."""
    text = "\n".join(f"{name}: {value}" for name, value in sorted(parts.items()))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


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
