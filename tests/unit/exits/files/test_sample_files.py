"""Files of sampled inputs: rows of every shape are kept, and a damaged file is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from brisk.exits.files.container import DamagedFileError
from brisk.exits.files.sample_files import read_samples_file, write_samples

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


def test_arrays_without_a_group_are_of_another_form(tmp_path: Path) -> None:
    path = tmp_path / "1-2-3.npz"
    np.savez(path, x=np.zeros((1, 2)))
    with pytest.raises(DamagedFileError, match=r"its arrays \['x'\] belong to no group"):
        read_samples_file(path)
