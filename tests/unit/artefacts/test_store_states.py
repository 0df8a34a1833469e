"""Files of a model that are written to while it is read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from brisk.artefacts.store import ITSELF, stamps, written_since
from brisk.errors import InvalidModelError
from brisk.segments.model.sources import BareModel
from support.models.segment_models import chain
from support.runtime.external_data import LOCATION, write_external, write_in_place


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


def test_a_session_of_weights_that_were_written_over_since_is_nobody_else_s(
    tmp_path: Path,
) -> None:
    """Where nothing holds the file, the mapping shows what was written since."""
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in (first, second):
        folder.mkdir()
        write_external(folder, "initialiser")
    spoiled = BareModel(first / "model.onnx", 1, is_awaited=True)
    spoiled.check()
    spoiled_session = spoiled.open(0)
    for folder in (first, second):
        write_in_place(folder / LOCATION, 5)
    assert spoiled.open_warm(0) is None
    whole = BareModel(second / "model.onnx", 1, is_awaited=True)
    whole.check()
    own = whole.open(0)
    kept = whole.open_warm(0) or own
    assert kept is not spoiled_session
    x = np.zeros((1, 4), np.float32)
    assert kept.session.run(["y"], {"x": x})[0].tolist() == [[5.0] * 4]
