"""A model entry as Triton hands it over: its file, device, tensors and parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brisk.cli.views.learning import read_aim
from brisk.errors import InvalidConfigurationError, InvalidModelError
from brisk.stub.config.entry import find_model, read_entry
from brisk.stub.config.session_tuning import read_tuning


def make_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def arguments(directory: Path, config: dict[str, Any], **changes: str) -> dict[str, str]:
    return {
        "model_name": "resnet",
        "model_version": "3",
        "model_repository": str(directory),
        "model_config": json.dumps(config),
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
        **changes,
    }


def test_the_model_is_model_onnx_in_its_version(tmp_path: Path) -> None:
    file = make_file(tmp_path / "3" / "model.onnx")
    assert find_model(tmp_path, 3, {}) == file
    assert find_model(tmp_path, 3, {"default_model_filename": ""}) == file
    assert find_model(tmp_path, 3, {"default_model_filename": "model.py"}) == file


def test_another_file_may_be_named(tmp_path: Path) -> None:
    make_file(tmp_path / "3" / "model.onnx")
    file = make_file(tmp_path / "3" / "other.onnx")
    assert find_model(tmp_path, 3, {"default_model_filename": "other.onnx"}) == file


def test_a_directory_holds_a_model_with_external_data(tmp_path: Path) -> None:
    file = make_file(tmp_path / "3" / "model.onnx" / "model.onnx")
    assert find_model(tmp_path, 3, {}) == file


@pytest.mark.parametrize(
    ("written", "told"),
    [(None, 0), ('backend: "brisk"', 0), ("instance_group [ { count: 2 } ]", 1)],
)
def test_instances_that_nobody_asked_for_are_not_told(
    tmp_path: Path, written: str | None, told: int
) -> None:
    """Triton makes two of a model of the backend ``onnxruntime``."""
    make_file(tmp_path / "3" / "model.onnx")
    if written is not None:
        (tmp_path / "config.pbtxt").write_text(written)
    entry = read_entry(arguments(tmp_path, {"instance_group": [{"count": 2}]}))
    assert [notice.field for notice in entry.notices] == ["instance_group.count"] * told


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    make_file(tmp_path / "2" / "model.onnx")
    with pytest.raises(InvalidModelError, match=r"no model file .*/3/model\.onnx"):
        find_model(tmp_path, 3, {})
    (tmp_path / "3" / "model.onnx").mkdir(parents=True)
    with pytest.raises(InvalidModelError, match=r"no model file .*/3/model\.onnx/model\.onnx"):
        find_model(tmp_path, 3, {})


def test_an_entry_is_read_whole(tmp_path: Path) -> None:
    file = make_file(tmp_path / "3" / "model.onnx")
    config = {
        "max_batch_size": 8,
        "dynamic_batching": {},
        "input": [
            {"name": "a", "data_type": "TYPE_BF16", "dims": [1]},
            {"name": "b", "data_type": "TYPE_FP32", "dims": [1]},
        ],
        "output": [{"name": "z"}, {"name": "y"}],
        "parameters": {"brisk_class": {"string_value": "besteffort"}},
    }
    entry = read_entry(arguments(tmp_path, config))
    model = entry.model
    assert (model.name, model.version, model.path) == ("resnet", 3, str(file))
    assert entry.outputs == ("z", "y")
    assert entry.bfloat16_inputs == {"a"}
    assert (model.max_batch_size, model.batching) == (8, True)
    assert model.job_class == "besteffort"


@pytest.mark.parametrize(
    "config", [{"max_batch_size": 8}, {"max_batch_size": 1, "dynamic_batching": {}}, {}]
)
def test_requests_are_joined_only_where_the_entry_asks_for_it(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    make_file(tmp_path / "3" / "model.onnx")
    assert not read_entry(arguments(tmp_path, config)).model.batching


@pytest.mark.parametrize(("most_urgent", "takes_offers"), [("normal", True), ("realtime", False)])
def test_a_stub_computes_nothing_itself_where_requests_may_be_real_time(
    tmp_path: Path, most_urgent: str, *, takes_offers: bool
) -> None:
    make_file(tmp_path / "3" / "model.onnx")
    config = {"parameters": {"brisk_max_class": {"string_value": most_urgent}}}
    assert read_entry(arguments(tmp_path, config)).model.takes_offers is takes_offers


@pytest.mark.parametrize(
    ("kind", "number", "device"),
    [("CPU", "0", "cpu"), ("AUTO", "0", "cpu"), ("GPU", "0", "cuda:0"), ("GPU", "2", "cuda:2")],
)
def test_the_instance_kind_says_the_device(
    tmp_path: Path, kind: str, number: str, device: str
) -> None:
    make_file(tmp_path / "3" / "model.onnx")
    changes = {"model_instance_kind": kind, "model_instance_device_id": number}
    assert read_entry(arguments(tmp_path, {}, **changes)).device == device


def test_an_instance_kind_that_is_not_served_is_named(tmp_path: Path) -> None:
    make_file(tmp_path / "3" / "model.onnx")
    with pytest.raises(InvalidConfigurationError, match="KIND_MODEL is not served"):
        read_entry(arguments(tmp_path, {}, model_instance_kind="MODEL"))


@pytest.mark.parametrize("is_kept", [False, True])
def test_nothing_is_answered_early_or_learned_where_triton_keeps_answers(
    tmp_path: Path, is_kept: bool
) -> None:
    make_file(tmp_path / "3" / "model.onnx")
    parameters = {"brisk_accuracy": {"string_value": "0.98"}}
    config = {"parameters": parameters, "response_cache": {"enable": is_kept}}
    entry = read_entry(arguments(tmp_path, config))
    assert entry.answers_early is not is_kept
    assert entry.model.accuracy_ppm == (0 if is_kept else 980_000)
    (tmp_path / "config.pbtxt").write_text(
        'parameters { key: "brisk_accuracy" value { string_value: "0.98" } }'
        f"response_cache {{ enable: {str(is_kept).lower()} }}"
    )
    assert (read_aim(tmp_path, tmp_path / "3" / "model.onnx") is None) is is_kept


def test_a_library_of_a_model_that_lies_elsewhere_is_searched_in_the_entry(tmp_path: Path) -> None:
    entry, model = tmp_path / "entry", tmp_path / "copy" / "1" / "model.onnx"
    library = make_file(entry / "3" / "ops.so")

    def libraries(name: str) -> tuple[str, ...]:
        config = {"model_operations": {"op_library_filename": [name]}}
        return read_tuning(config, entry, model).tuning.operator_libraries

    assert libraries("3/ops.so") == (str(library),)
    with pytest.raises(InvalidModelError, match=rf"no library 'ops.so' .* a file in {entry}$"):
        libraries("ops.so")


def test_a_smaller_model_lies_in_the_version_s_directory(tmp_path: Path) -> None:
    config = {"parameters": {"brisk_smaller_model": {"string_value": "small.onnx"}}}
    make_file(tmp_path / "3" / "model.onnx" / "model.onnx")
    with pytest.raises(InvalidModelError, match=r"brisk_smaller_model: .* no file .*/3/small"):
        read_entry(arguments(tmp_path, config))
    make_file(tmp_path / "3" / "small.onnx")
    assert read_entry(arguments(tmp_path, config)).model.smaller == "small.onnx"
    (tmp_path / "small.onnx").touch()
    config = {"parameters": {"brisk_smaller_model": {"string_value": "../small.onnx"}}}
    with pytest.raises(InvalidModelError, match="leads outside the model's folder"):
        read_entry(arguments(tmp_path, config))


def test_what_the_server_alone_asks_for_is_handed_on_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_file(tmp_path / "3" / "model.onnx")
    monkeypatch.setenv("BRISK_ACCURACY", "0.97")
    model = read_entry(arguments(tmp_path, {})).model
    assert (model.accuracy_ppm, model.needs_classes) == (970_000, True)
    labels = {"output": [{"name": "y", "label_filename": "kinds.txt"}]}
    assert not read_entry(arguments(tmp_path, labels)).model.needs_classes
    said = {"parameters": {"brisk_accuracy": {"string_value": "0.98"}}}
    model = read_entry(arguments(tmp_path, said)).model
    assert (model.accuracy_ppm, model.needs_classes) == (980_000, False)
