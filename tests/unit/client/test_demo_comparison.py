"""Comparing answers with expectations, and storing them."""

from pathlib import Path

import numpy as np
import pytest

from brisk_bench.demo import ShownAnswer, table_of
from brisk_bench.samples.expectations import (
    EXPECTED,
    ExpectedAnswer,
    is_current,
    mismatch,
    read_expectations,
    write_expectations,
)

ONES = np.ones((2, 3), np.float32)


def test_equal_answers_have_no_mismatch() -> None:
    assert mismatch({"y": ONES}, {"y": ONES}) == ""
    assert mismatch({"y": ONES * (1 + 5e-4)}, {"y": ONES}) == ""


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        ({"y": ONES * 1.01}, r"output 'y' is off by up to 0\.01"),
        ({"y": ONES * np.nan}, "output 'y' is off"),
        ({"y": ONES.T}, r"output 'y' is float32\[3, 2\], expected float32\[2, 3\]"),
        ({"y": ONES.astype(np.float64)}, "output 'y' is float64"),
        ({"z": ONES}, r"outputs are \['z'\], expected \['y'\]"),
    ],
)
def test_a_different_answer_says_what_differs(outputs: dict[str, np.ndarray], reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(mismatch(outputs, {"y": ONES}))


def test_a_table_has_a_line_for_each_answer() -> None:
    right = ShownAnswer("net", 1, "HTTP", "1 1 …", "1 1 …", 0.5, "")
    wrong = ShownAnswer("net", 1, "gRPC", "-", "1 1 …", None, "unavailable")
    assert right.right
    assert not wrong.right
    assert table_of([right, wrong]).row_count == 2


def test_expectations_survive_storing(tmp_path: Path) -> None:
    stored = [
        ExpectedAnswer(10, {"x": ONES}, {"y": ONES * 10}),
        ExpectedAnswer(2, {"x": ONES}, {"y/with/slashes": ONES * 2}),
    ]
    write_expectations(tmp_path, stored)
    read = read_expectations(tmp_path)
    assert [each.version for each in read] == [2, 10]
    assert read[0].outputs.keys() == {"y/with/slashes"}
    np.testing.assert_array_equal(read[1].outputs["y"], ONES * 10)


def test_an_entry_is_current_only_with_its_models_and_the_present_code(tmp_path: Path) -> None:
    assert not is_current(tmp_path)
    write_expectations(tmp_path, [ExpectedAnswer(1, {"x": ONES}, {"y": ONES})])
    assert not is_current(tmp_path)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").touch()
    assert is_current(tmp_path)
    np.savez(tmp_path / EXPECTED, digest=np.array("of other code"))
    assert not is_current(tmp_path)
