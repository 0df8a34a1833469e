"""Files of sampled inputs: rows of every shape are kept, and a damaged file is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from brisk.exits.files.container import DamagedFileError
from brisk.exits.files.sample_files import read_samples_file, write_samples
from brisk.exits.files.versions import samples_folder

pytestmark = pytest.mark.usefixtures("private_cache")


def test_rows_of_one_shape_are_together(tmp_path: Path) -> None:
    parts = [{"x": np.zeros((2, 3))}, {"x": np.ones((1, 4))}, {"x": np.full((1, 3), 2.0)}]
    path = write_samples(tmp_path / "model.onnx", parts)
    assert path.stem.endswith("-4"), "rows"
    three, four = read_samples_file(path)
    assert three["x"].tolist() == [[0.0] * 3, [0.0] * 3, [2.0] * 3]
    assert four["x"].tolist() == [[1.0] * 4]


def test_inputs_may_have_any_name(tmp_path: Path) -> None:
    names = ("file", "args", "a/b", "0/x", "ünï")
    path = write_samples(tmp_path / "model.onnx", [{name: np.zeros((1, 2)) for name in names}])
    (group,) = read_samples_file(path)
    assert set(group) == set(names)


@pytest.mark.parametrize("content", [b"", b"nothing", b"PK\x05\x06" + bytes(18)])
def test_a_damaged_file_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "1-2-3.npz"
    path.write_bytes(content)
    if content.startswith(b"PK"):
        assert read_samples_file(path) == []
    else:
        with pytest.raises(DamagedFileError, match="no archive of arrays"):
            read_samples_file(path)


def pictures(rows: int) -> np.ndarray:
    """Smooth pictures of 256 levels, scaled as networks read them, float32 [rows, 3, 64, 64]."""
    across = np.linspace(0, 6, 64)
    levels = [np.sin(across + row) * np.cos(across[:, None] - row) for row in range(rows)]
    pixels = np.round((np.stack(levels) + 1) * 127.5)
    scaled = [(pixels / 255 - mean) / 0.23 for mean in (0.485, 0.456, 0.406)]
    return np.stack(scaled, 1).astype(np.float32)


def test_pictures_take_a_fraction_of_their_size_and_keep_every_bit(tmp_path: Path) -> None:
    rows = pictures(16)
    path = write_samples(tmp_path / "model.onnx", [{"x": rows[:7]}, {"x": rows[7:]}])
    assert path.stat().st_size < rows.nbytes / 3
    (group,) = read_samples_file(path)
    assert group["x"].tobytes() == rows.tobytes()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_file_that_was_changed_is_none(tmp_path: Path, share: float) -> None:
    path = write_samples(tmp_path / "model.onnx", [{"x": pictures(8)}])
    content = bytearray(path.read_bytes())
    at = int(share * len(content))
    content[at : at + 40] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match="no archive of arrays"):
        read_samples_file(path)


def test_values_without_a_type_of_numpys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allow_pickle"):
        write_samples(tmp_path / "model.onnx", [{"x": np.array([["a", None]], object)}])
    assert list(samples_folder(tmp_path / "model.onnx").iterdir()) == []


def test_arrays_without_a_group_are_of_another_form(tmp_path: Path) -> None:
    path = tmp_path / "1-2-3.npz"
    np.savez(path, x=np.zeros((1, 2)))
    with pytest.raises(DamagedFileError, match=r"its arrays \['x'\] belong to no group"):
        read_samples_file(path)
