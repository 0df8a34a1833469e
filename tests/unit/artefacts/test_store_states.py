"""Files of a model that are written to while it is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brisk.artefacts.store import ITSELF, stamps, written_since
from brisk.errors import InvalidModelError
from brisk.segments.model.sources import BareModel
from support.models.segment_models import chain


def test_only_what_was_written_to_in_place_has_changed(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"one")
    seen = stamps(model, [ITSELF])
    assert written_since(model, seen) is None
    os.link(model, tmp_path / "another name")
    model.unlink()
    assert written_since(model, seen) is None
    (tmp_path / "next").write_bytes(b"two")
    (tmp_path / "next").rename(model)
    assert written_since(model, seen) is None
    seen = stamps(model, [ITSELF])
    with model.open("ab") as file:
        file.write(b" and more")
    assert written_since(model, seen) == model


def test_a_model_that_is_written_to_while_it_is_loaded_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    chain(model)
    source = BareModel(model, 1)
    with model.open("r+b") as file:
        file.write(file.read(1))
        file.flush()
        os.utime(file.fileno(), ns=(10**18, 10**18))
    with pytest.raises(InvalidModelError, match="was written to while it was loaded"):
        source.check()
