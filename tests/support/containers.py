"""Artefact files of given blobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from brisk.artefacts.container import ContainerDraft


def write_container(path: Path, content: Any, blobs: Sequence[np.ndarray] = ()) -> Path:
    with path.open("wb") as file:
        draft = ContainerDraft(file)
        for blob in blobs:
            draft.add(blob)
        draft.finish(content)
    return path
