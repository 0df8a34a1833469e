"""What the runtime does with artefacts; free of torch, because settings are read before it is."""

from __future__ import annotations

from enum import Enum


class ArtefactUse(str, Enum):
    """``build``: used, and made in the background where there is none. ``use``: used only."""

    BUILD = "build"
    USE = "use"
    OFF = "off"
