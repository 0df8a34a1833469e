"""Where the cache directory is, and artefacts in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """``$BRISK_CACHE_DIR``, else ``$XDG_CACHE_HOME/brisk``, else ``~/.cache/brisk``."""
    if named := environment.get("BRISK_CACHE_DIR"):
        return Path(named)
    if base := environment.get("XDG_CACHE_HOME"):
        return Path(base) / "brisk"
    return Path(environment.get("HOME") or Path.home()) / ".cache" / "brisk"


def artefacts_directory(environment: Mapping[str, str] = os.environ) -> Path:
    return cache_directory(environment) / "artefacts"
