"""Prepared forms that are damaged, or of another model, runtime or processor, are refused."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from brisk.artefacts.container import HEADER_BYTES, Container, header, make_key
from brisk.errors import ArtefactError
from brisk.segments.prepared import form as prepared
from brisk.segments.prepared.form import PreparedModel, find_prepared
from brisk.segments.prepared.manifest import fingerprint
from brisk.segments.prepared.preparation import is_prepared, prepare
from support.models.changed_prepared import manifest_of
from support.models.segment_models import chain, run_in_turn, whole

pytestmark = pytest.mark.usefixtures("private_cache", "short_segments")

ROWS = np.random.default_rng(3).standard_normal((5, 512)).astype(np.float32)
THREADS = 2


def opened_whole(path: Path, model: Path) -> None:
    for shares in (True, False):
        source = PreparedModel(path, model, THREADS, shares=shares)
        for segment in source.plan.segments:
            source.open(segment.index)


def changed(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)
    path.chmod(0o600)


def positions(path: Path) -> Iterator[int]:
    """Every byte of the header; some of each blob, its ends among them, and of the manifest."""
    container = Container(path)
    size = path.stat().st_size
    yield from range(HEADER_BYTES)
    end = HEADER_BYTES
    for number in range(len(container)):
        place = container.place(number)
        assert place.offset - end < 4096
        end = place.offset + place.size
        yield from {place.offset, place.offset + place.size // 2, end - 1}
    yield from range(end, size, 97)


def test_a_changed_byte_of_any_class_is_refused_before_it_is_used(model: Path) -> None:
    path = prepare(model, THREADS).path
    whole_file = path.read_bytes()
    places = list(positions(path))
    for position in places:
        damaged = bytearray(whole_file)
        damaged[position] ^= 0x10
        changed(path, damaged)
        with pytest.raises(ArtefactError):
            opened_whole(path, model)
        assert position > HEADER_BYTES + 100 or not is_prepared(model, THREADS)
    assert len(places) > 150
    assert not is_prepared(model, THREADS)
    assert prepare(model, THREADS).path == path
    assert is_prepared(model, THREADS)


def test_another_version_of_onnx_runtime_or_another_processor_makes_its_own(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = prepare(model, THREADS).path
    foreign = {**fingerprint(), "cpu": "another", "engine": "onnxruntime 0.1"}
    monkeypatch.setattr(prepared, "fingerprint", lambda taps=(): foreign)
    assert find_prepared(model) is None
    with pytest.raises(ArtefactError, match="its engine, cpu differ"):
        PreparedModel(path, model, THREADS)


def test_a_model_that_has_changed_is_never_served_from_its_old_form(
    model: Path, tmp_path: Path
) -> None:
    path = prepare(model, THREADS).path
    other = chain(tmp_path / "other.onnx", layers=11)
    os.replace(other, model)
    with pytest.raises(ArtefactError, match="the model has changed"):
        PreparedModel(path, model, THREADS)
    assert not is_prepared(model, THREADS)
    made = prepare(model, THREADS).path
    assert made != path
    answer = run_in_turn(PreparedModel(made, model, THREADS), {"x": ROWS})["y"]
    np.testing.assert_allclose(answer, whole(model, {"x": ROWS})["y"], rtol=1e-4, atol=1e-5)


def test_external_data_that_has_changed_is_noticed(tmp_path: Path) -> None:
    model = chain(tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin")
    path = prepare(model, THREADS).path
    np.testing.assert_allclose(
        run_in_turn(PreparedModel(path, model, THREADS), {"x": ROWS})["y"],
        whole(model, {"x": ROWS})["y"],
        rtol=1e-4,
        atol=1e-5,
    )
    data = bytearray((tmp_path / "weights.bin").read_bytes())
    data[100] ^= 1
    (tmp_path / "weights.bin").write_bytes(data)
    with pytest.raises(ArtefactError, match="the model has changed"):
        PreparedModel(path, model, THREADS)


@pytest.mark.parametrize("number", [10**400, math.inf], ids=["huge", "infinite"])
def test_a_manifest_of_a_number_that_no_field_takes_is_refused(model: Path, number: float) -> None:
    """JSON has integers of any size, and 1e999."""
    path = prepare(model, THREADS).path
    blobs, manifest = manifest_of(path)
    manifest["content"]["sessions"][0]["structure"]["proto" if number == math.inf else "speed"] = (
        number
    )
    text = json.dumps(manifest).replace("Infinity", "1e999").encode()
    size = HEADER_BYTES + len(blobs) + len(text)
    changed(path, header(text, size, make_key()) + blobs + text)
    with pytest.raises(ArtefactError, match="no prepared model: OverflowError"):
        PreparedModel(path, model, THREADS)


def test_a_manifest_of_other_content_is_refused(model: Path) -> None:
    """With the key, as a fault of our own writer would: fields are checked one by one."""
    source = PreparedModel(prepare(model, THREADS).path, model, THREADS)
    good = json.loads(json.dumps(source.container.content))
    assert source._read(good, model, ())
    for field in ("fingerprint", "identity", "plan", "sessions"):
        for wrong in ({}, [], None, 7, "x", [[]], [{}]):
            with pytest.raises((ArtefactError, KeyError, TypeError, ValueError, AttributeError)):
                source._read({**good, field: wrong}, model, ())
    first = good["sessions"][0]
    for wrong in (
        {"proto": 99},
        {"weights": [["w", 1, [-1], 0]]},
        {"weights": [["w", 1, [9], 0]]},
    ):
        with pytest.raises(ArtefactError):
            source._read({**good, "sessions": [{**first, **wrong}]}, model, ())
