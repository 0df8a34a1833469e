"""Training data from files, and what is said of files that do not fit."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from PIL import Image

from brisk.errors import InvalidRequestError
from brisk.exits.data.reading import ImageForm, read_parts, read_samples
from brisk.exits.files.sample_files import write_samples
from brisk.exits.model_graph import ModelGraph, read_graph
from support.exits.cascades import SIDE, graph_of, network
from support.exits.texts import text_classifier, texts
from support.models.segment_models import save


@pytest.fixture(scope="module")
def graph() -> ModelGraph:
    return graph_of(network(layers=2))


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(0).random((count, 3, SIDE, SIDE), np.float32)


def test_an_array_of_any_name_serves_a_model_with_one_input(
    tmp_path: Path, graph: ModelGraph
) -> None:
    np.savez(tmp_path / "data.npz", anything=rows(4), labels=np.arange(4))
    samples = read_samples(tmp_path / "data.npz", graph)
    assert np.array_equal(samples.inputs["image"], rows(4))
    assert samples.labels is not None
    assert samples.labels.tolist() == [0, 1, 2, 3]


def test_captured_requests_in_a_folder_are_put_together(tmp_path: Path, graph: ModelGraph) -> None:
    np.savez(tmp_path / "b.npz", image=rows(3)[1:])
    np.savez(tmp_path / "a.npz", image=rows(3)[:1])
    samples = read_samples(tmp_path, graph)
    assert np.array_equal(samples.inputs["image"], rows(3))
    assert samples.labels is None


def test_samples_of_the_traffic_are_read_by_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    parts = [texts(3, length=5), texts(2, length=7), texts(1, length=5)]
    path = write_samples(tmp_path / "model.onnx", parts)
    graph = graph_of(text_classifier())
    found = read_parts(path.parent, graph)
    assert [part.inputs["words"].shape for part in found] == [(4, 5), (2, 7)]
    np.testing.assert_array_equal(found[0].inputs["mask"][3], parts[2]["mask"][0])
    with pytest.raises(InvalidRequestError, match="arrays do not fit together"):
        read_samples(path, graph)


def test_an_empty_archive_lacks_its_arrays(tmp_path: Path, graph: ModelGraph) -> None:
    np.savez(tmp_path / "data.npz")
    with pytest.raises(InvalidRequestError, match="has no array image"):
        read_samples(tmp_path / "data.npz", graph)


def test_images_are_scaled_and_labelled_by_their_folders(
    tmp_path: Path, graph: ModelGraph
) -> None:
    for name, shade in (("dark", 0), ("light", 255)):
        (tmp_path / name).mkdir()
        Image.new("RGB", (20, 30), (shade,) * 3).save(tmp_path / name / "one.png")
    form = ImageForm(scale=255.0, mean=(0.5, 0.5, 0.5), deviation=(0.25, 0.25, 0.25))
    samples = read_samples(tmp_path, graph, form)
    assert samples.inputs["image"].shape == (2, 3, SIDE, SIDE)
    assert samples.inputs["image"][0].max() == pytest.approx(-2.0)
    assert samples.inputs["image"][1].min() == pytest.approx(2.0)
    assert samples.labels is not None
    assert samples.labels.tolist() == [0, 1]


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@pytest.mark.parametrize("what", ["too many pixels", "too long a text", "no picture"])
def test_an_image_that_cannot_be_decoded_is_named(
    tmp_path: Path, graph: ModelGraph, what: str
) -> None:
    side = 20_000 if what == "too many pixels" else 20
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0),
        b"zTXt": b"a\0\0" + zlib.compress(bytes(5 << 20 if what == "too long a text" else 1)),
        b"IDAT": b"" if what == "no picture" else zlib.compress(bytes(21 * 20)),
        b"IEND": b"",
    }
    content = b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts.items())
    (tmp_path / "one.png").write_bytes(content)
    with pytest.raises(InvalidRequestError, match=r"one\.png' is no readable image: "):
        read_samples(tmp_path, graph)


@pytest.mark.parametrize("name", ["mean", "deviation"])
def test_numbers_of_other_channels_than_the_images_have_are_named(
    tmp_path: Path, graph: ModelGraph, name: str
) -> None:
    Image.new("RGB", (20, 30)).save(tmp_path / "one.png")
    form = ImageForm(**{name: (0.5, 0.25)})  # type: ignore[arg-type]  # one of two names
    with pytest.raises(InvalidRequestError, match=f"{name} has 2 numbers for images of 3 channel"):
        read_samples(tmp_path, graph, form)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"image": np.zeros((2, 1, SIDE, SIDE), np.float32)}, "expected float32"),
        ({"image": np.zeros((2, 3, SIDE), np.float32)}, "expected float32"),
        (
            {"image": np.full((2, 3, SIDE, SIDE), np.nan, np.float32)},
            r"/data\.npz': input 'image' has NaN or infinite values as float32$",
        ),
        ({"image": np.full((2, 3, SIDE, SIDE), 1e39)}, "has NaN or infinite values as float32$"),
        ({"image": np.array(["a", "b"])}, "expected float32"),
        ({"x": rows(1), "y": rows(1)}, "has no array image"),
        ({"image": rows(2), "lables": np.arange(2)}, "of image, labels; did you mean 'labels'"),
        (
            {"image": rows(2), "weather": np.arange(2)},
            "'weather', which is none of image, labels$",
        ),
        ({"image": rows(2), "labels": np.int64(1)}, "has labels of 1 row, inputs of 2: expected"),
        ({"image": rows(2), "labels": np.arange(1)}, "has labels of 1 row, inputs of 2: expected"),
    ],
)
def test_arrays_that_do_not_fit_are_named(
    tmp_path: Path, graph: ModelGraph, arrays: dict[str, np.ndarray], text: str
) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(InvalidRequestError, match=text):
        read_samples(tmp_path / "data.npz", graph)


def test_labels_of_some_files_alone_are_refused(tmp_path: Path, graph: ModelGraph) -> None:
    np.savez(tmp_path / "a.npz", image=rows(2), labels=np.arange(2))
    np.savez(tmp_path / "b.npz", image=rows(1))
    with pytest.raises(InvalidRequestError, match=f"'{tmp_path}' has labels of 2 rows, inputs of"):
        read_samples(tmp_path, graph)


def test_pickled_arrays_are_refused(tmp_path: Path, graph: ModelGraph) -> None:
    np.savez(tmp_path / "data.npz", image=np.array([{}], object))
    with pytest.raises(InvalidRequestError, match=r"no readable \.npz"):
        read_samples(tmp_path / "data.npz", graph)


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, graph: ModelGraph, content: bytes) -> None:
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(InvalidRequestError, match=r"no readable \.npz"):
        read_samples(tmp_path / "data.npz", graph)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_compressed_file_that_was_changed_is_refused(
    tmp_path: Path, graph: ModelGraph, share: float
) -> None:
    path = tmp_path / "data.npz"
    np.savez_compressed(path, image=np.random.default_rng(0).random(rows(50).shape, np.float32))
    content = bytearray(path.read_bytes())
    at = int(share * len(content))
    content[at : at + 40] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(InvalidRequestError, match=r"no readable \.npz"):
        read_samples(path, graph)


def test_a_single_array_is_no_archive(tmp_path: Path, graph: ModelGraph) -> None:
    np.save(tmp_path / "data.npy", rows(2))
    with pytest.raises(InvalidRequestError, match=r"no readable \.npz"):
        read_samples(tmp_path / "data.npy", graph)


def test_nothing_there_is_said(tmp_path: Path, graph: ModelGraph) -> None:
    with pytest.raises(InvalidRequestError, match="is not there"):
        read_samples(tmp_path / "missing", graph)
    with pytest.raises(InvalidRequestError, match=r"neither \.npz files nor images"):
        read_samples(tmp_path, graph)


def test_sizes_that_the_model_does_not_name_are_told_as_rows_and_question_marks(
    tmp_path: Path,
) -> None:
    image, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 3, None, "width"])
        for name in ("image", "y")
    )
    save(tmp_path / "model.onnx", [helper.make_node("Relu", ["image"], ["y"])], [image], [y])
    graph = read_graph(tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", image=np.zeros((2, 1, 4, 4), np.float32))
    with pytest.raises(InvalidRequestError, match=r"expected float32 \[rows, 3, \?, width\]$"):
        read_samples(tmp_path / "data.npz", graph)
