"""A manifest's description of a model: enough to start it by, in the order of the start."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from brisk.artefacts import content
from brisk.artefacts.container import HEADER_BYTES
from brisk.copies.manifest import ListedSegment, Manifest, Range, read_manifest, write_manifest
from brisk.errors import InvalidModelError, UnavailableError
from brisk.publishing import describing
from brisk.publishing.describing import describe, unsealed
from brisk.publishing.writing import publish
from brisk.segments.model.sources import BareModel
from brisk.segments.source import Source
from support.models.segment_models import chain, info, save, source_of, whole


def head_alone(manifest: Manifest, gathered: bytes, folder: Path) -> Path:
    """The model's files with zeros for all weights, as a copy has them when its head is here."""
    for number in manifest.own:
        target = folder / manifest.files[number].name
        target.write_bytes(bytes(manifest.files[number].size))
    position = 0
    for part in manifest.head:
        with open(folder / manifest.files[part.file].name, "r+b") as file:
            file.seek(part.offset)
            file.write(gathered[position : position + part.size])
        position += part.size
    return folder / manifest.files[manifest.model].name


def fill(manifest: Manifest, parts: list[Range], source: Path, folder: Path) -> None:
    for part in parts:
        name = manifest.files[part.file].name
        with open(folder / name, "r+b") as file:
            file.seek(part.offset)
            file.write((source / name).read_bytes()[part.offset : part.offset + part.size])


@pytest.mark.parametrize("external", [False, True])
def test_the_head_alone_says_how_a_model_is_cut_and_the_order_completes_it(
    tmp_path: Path, short_segments: None, external: bool
) -> None:
    published, copy = tmp_path / "published", tmp_path / "copy"
    published.mkdir()
    copy.mkdir()
    options = {"save_as_external_data": True, "location": "weights.bin"} if external else {}
    model = chain(published / "model.onnx", layers=6, width=64, **options)
    described = describe(model, 1, with_form=False)
    manifest = described.manifest
    gathered = described.contents["head.bin"]
    assert isinstance(gathered, bytes)
    arriving = head_alone(manifest, gathered, copy)
    plan = BareModel(arriving, 1, manifest.cuts).plan
    assert plan == BareModel(model, 1, manifest.cuts).plan
    assert len(plan.segments) == len(manifest.segments) > 1
    assert all(segment.run_s > 0 for segment in manifest.segments)
    fill(manifest, list(manifest.order), published, copy)
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 64)).astype("f4")}
    np.testing.assert_array_equal(whole(arriving, inputs)["y"], whole(model, inputs)["y"])
    for name in ("model.onnx", *(["weights.bin"] if external else [])):
        assert (copy / name).read_bytes() == (published / name).read_bytes()


def test_weights_stand_in_the_order_of_segments_each_byte_once(
    tmp_path: Path, short_segments: None
) -> None:
    model = chain(tmp_path / "model.onnx", layers=6, width=64)
    manifest = describe(model, 1, with_form=False).manifest
    source = source_of(model)
    places = [(part.offset, part.size) for part in manifest.order]
    places_read = [
        (part.offset, part.size)
        for index in range(len(source.plan.segments))
        for part in source.reads(index)
    ]
    assert sorted(places) == sorted(set(places))
    assert places == list(dict.fromkeys(places_read))
    covered = sum(part.size for part in (*manifest.head, *manifest.order))
    assert covered == model.stat().st_size


def test_weights_that_an_old_file_lists_as_inputs_are_streamed_too(
    tmp_path: Path, short_segments: None
) -> None:
    path = chain(tmp_path / "model.onnx", layers=6, width=64)
    model = onnx.load(path)
    model.ir_version = 3
    model.graph.input.extend(info(each.name, *each.dims) for each in model.graph.initializer)
    onnx.save(model, path)
    manifest = describe(path, 1, with_form=False).manifest
    assert sum(part.size for part in manifest.order) == 6 * 64 * 64 * 4


def test_what_may_decide_shapes_is_part_of_the_head(tmp_path: Path) -> None:
    """A table of integers as large as a weight is read when the model is, not when it runs."""
    table = np.arange(4096, dtype=np.int64)
    weight = np.ones((64, 64), np.float32)
    model = save(
        tmp_path / "model.onnx",
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Gather", ["t", "i"], ["g"]),
            helper.make_node("Identity", ["m"], ["y"]),
        ],
        [info("x", "n", 64), info("i", 1, kind=onnx.TensorProto.INT64)],
        [info("y", "n", 64), info("g", 1, kind=onnx.TensorProto.INT64)],
        {"w": weight, "t": table},
    )
    manifest = describe(model, 1, with_form=False).manifest
    data = model.read_bytes()
    parts = [data[part.offset : part.offset + part.size] for part in manifest.order]
    assert parts == [weight.tobytes()]


def test_a_manifest_is_read_as_it_was_written_and_by_its_digest_alone(tmp_path: Path) -> None:
    model = chain(tmp_path / "model.onnx", layers=2, width=64)
    manifest = describe(model, 1, with_form=False).manifest
    text = write_manifest(manifest)
    assert read_manifest(text, hashlib.sha256(text).hexdigest()) == manifest
    digests = content.content_of(model, [content.ITSELF]).digests
    assert manifest.files[manifest.model].digest == digests[content.ITSELF]
    with pytest.raises(InvalidModelError, match="the manifest has SHA-256"):
        read_manifest(text + b" ", hashlib.sha256(text).hexdigest())


@pytest.mark.parametrize("name", ["head.bin", "manifest.json"])
def test_data_under_the_name_of_what_is_published_beside_it_is_refused(
    tmp_path: Path, name: str
) -> None:
    options = {"save_as_external_data": True, "location": name}
    model = chain(tmp_path / "model.onnx", layers=2, width=64, **options)
    with pytest.raises(InvalidModelError, match=f"its data lies in '{name}'; rename that"):
        describe(model, 1, with_form=False)


def test_a_model_of_more_files_than_hosts_take_is_refused_before_it_is_read(
    tmp_path: Path,
) -> None:
    """As PyTorch exports large ones: a file for each tensor."""
    weights = {f"w{number}": np.ones(4, np.float32) for number in range(254)}
    names = ["x", *(f"s{number}" for number in range(253)), "y"]
    model = save(
        tmp_path / "model.onnx",
        [
            helper.make_node("Add", [before, weight], [after])
            for before, weight, after in zip(names, weights, names[1:], strict=False)
        ],
        [info("x", 4)],
        [info("y", 4)],
        weights,
        save_as_external_data=True,
        all_tensors_to_one_file=False,
        size_threshold=0,
    )
    with pytest.raises(InvalidModelError, match="consists of 255 files; expected 254 at most"):
        describe(model, 1, with_form=False)


def test_names_that_no_host_takes_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    model = chain(tmp_path / ".hidden.onnx", layers=2, width=64)
    described = describe(model, 1, with_form=False)
    with pytest.raises(InvalidModelError, match=r"hidden\.onnx.* is no name of a file"):
        publish(described, str(tmp_path / "there"))
    assert not (tmp_path / "there").exists()


def test_a_published_form_carries_no_seal(tmp_path: Path) -> None:
    form = tmp_path / "form"
    form.write_bytes(b"\1" * 200)
    data = unsealed(form)
    assert data[:64] + data[HEADER_BYTES:] == b"\1" * (200 - 32)
    assert data[64:HEADER_BYTES] == bytes(32)


def test_a_folder_is_written_whole_and_the_entry_names_its_manifest(tmp_path: Path) -> None:
    model = chain(tmp_path / "model.onnx", layers=2, width=64)
    described = describe(model, 1, with_form=False)
    answer = json.loads(publish(described, str(tmp_path / "there")))
    manifest = (tmp_path / "there" / "manifest.json").read_bytes()
    assert answer == {
        "url": (tmp_path / "there" / "manifest.json").as_uri(),
        "sha256": hashlib.sha256(manifest).hexdigest(),
    }
    assert (tmp_path / "there" / "model.onnx").read_bytes() == model.read_bytes()
    assert {path.name for path in (tmp_path / "there").iterdir()} == {
        *("manifest.json", "model.onnx", "head.bin")
    }


def test_places_that_take_nothing_are_named_without_passwords(tmp_path: Path) -> None:
    model = chain(tmp_path / "model.onnx", layers=2, width=64)
    described = describe(model, 1, with_form=False)
    with pytest.raises(UnavailableError, match=r"PUT http://127\.0\.0\.1:9/x") as caught:
        publish(described, "http://user:secret@127.0.0.1:9/x?token=secret")
    assert "secret" not in str(caught.value)
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="cannot be written"):
        publish(described, str(tmp_path / "file"))


@pytest.mark.parametrize("name", ["model.onnx", "weights.bin"])
def test_a_model_that_changes_while_it_is_described_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    options = {"save_as_external_data": True, "location": "weights.bin"}
    model = chain(tmp_path / "model.onnx", layers=2, width=64, **options)
    measured = describing._measured

    def after_a_write(source: Source) -> tuple[ListedSegment, ...]:
        data = (tmp_path / name).read_bytes()
        (tmp_path / "new").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        (tmp_path / "new").rename(tmp_path / name)
        return measured(source)

    monkeypatch.setattr(describing, "_measured", after_a_write)
    with pytest.raises(InvalidModelError, match=f"{name} changed while it was described"):
        describe(model, 1, with_form=False)
    monkeypatch.undo()
    describe(model, 1, with_form=False)
