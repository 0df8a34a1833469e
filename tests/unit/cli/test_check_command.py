"""``brisk check`` on repositories that are as they should be, and on bad ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format, text_format
from onnx import TensorProto
from typer.testing import CliRunner

from brisk.cli.application import application
from brisk.view.entry_text import SCHEMA
from brisk.view.plan import A_GPU
from support.server.contradictions import CONTRADICTIONS, config, saved, tensor


def check(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(application, ["check", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def remarks(repository: Path) -> tuple[int, list[dict[str, Any]]]:
    status, output, _ = check(repository, "--json")
    return status, json.loads(output)


def write(repository: Path, name: str, said: dict[str, Any] | str | None) -> Path:
    entry = repository / name
    (entry / "1").mkdir(parents=True)
    saved(entry / "1")
    if isinstance(said, dict):
        message = json_format.ParseDict({"backend": "brisk", **said}, SCHEMA.ModelConfig())
        said = text_format.MessageToString(message)
    if said is not None:
        (entry / "config.pbtxt").write_text(said)
    return entry


def test_a_repository_that_is_served_as_it_is_has_no_remarks(tmp_path: Path) -> None:
    write(tmp_path, "whole", config())
    write(tmp_path, "completed", 'backend: "brisk"')
    write(tmp_path, "bare", None)
    status, output, errors = check(tmp_path)
    assert (status, errors) == (0, "")
    assert output == f"nothing in '{tmp_path}' would be refused\n"
    assert remarks(tmp_path) == (0, [])


def test_every_contradiction_between_entry_and_model_is_found(tmp_path: Path) -> None:
    for number, (said, _) in enumerate(CONTRADICTIONS.values()):
        write(tmp_path, f"entry{number:02}", said)
    status, found = remarks(tmp_path)
    assert status == 1
    assert [each["entry"] for each in found] == [
        f"entry{n:02}" for n in range(len(CONTRADICTIONS))
    ]
    for each, (_, words) in zip(found, CONTRADICTIONS.values(), strict=True):
        assert (each["version"], each["severity"]) == (1, "problem")
        assert re.search(words, each["text"]), each["text"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('parameters [ { key: "brisk_clas" value: { string_value: "normal" } } ]', "brisk_class"),
        ('parameters [ { key: "BRISK_CLASS" value: { string_value: "normal" } } ]', "brisk_class"),
        ('parameters [ { key: "brisk_class" value: { string_value: "fast" } } ]', "realtime"),
        ('parameters [ { key: "brisk_max_run" value: { string_value: "-1" } } ]', "seconds"),
        ("max_batchsize: 8", "max_batchsize"),
        ("input [", "config.pbtxt"),
        ("model_transaction_policy { decoupled: true }", "decoupled"),
    ],
)
def test_what_is_misspelt_or_cannot_be_had_is_named(tmp_path: Path, text: str, words: str) -> None:
    write(tmp_path, "entry", f'backend: "brisk"\n{text}')
    status, found = remarks(tmp_path)
    assert status == 1
    assert any(each["severity"] == "problem" and words in each["text"] for each in found), found


def test_what_has_no_effect_is_a_warning_and_no_failure(tmp_path: Path) -> None:
    write(tmp_path, "entry", 'backend: "brisk"\noptimization { priority: PRIORITY_MAX }')
    status, (found,) = remarks(tmp_path)
    assert (status, found["severity"], found["version"]) == (0, "warning", 1)
    assert found["text"].startswith("optimization.priority has no effect")


def test_each_version_that_would_be_loaded_is_looked_at(tmp_path: Path) -> None:
    said = config(version_policy={"all": {}})
    entry = write(tmp_path, "entry", said)
    (entry / "2").mkdir()
    (entry / "2" / "model.onnx").write_bytes(b"no model")
    status, (found,) = remarks(tmp_path)
    assert (status, found["version"]) == (1, 2)


def test_entries_of_other_backends_are_left_alone(tmp_path: Path) -> None:
    entry = tmp_path / "other"
    (entry / "1").mkdir(parents=True)
    (entry / "1" / "model.py").touch()
    (entry / "config.pbtxt").write_text('backend: "python"')
    status, (found,) = remarks(tmp_path)
    assert (status, found["severity"]) == (0, "information")
    assert "it is not for Brisk: " in found["text"]
    assert "a server without the backend 'python' refuses it" in found["text"]


def test_an_entry_that_asks_to_learn_what_cannot_be_learned_is_warned_of(tmp_path: Path) -> None:
    image = (TensorProto.FLOAT, ["b", 4, 2])
    said = config(
        tensor("x", "FP32", [4, 2]),
        y=tensor("y", "FP32", [4, 2]),
        parameters={"brisk_accuracy": {"string_value": "0.97"}},
    )
    entry = write(tmp_path, "net", said)
    saved(entry / "1", [("x", *image)], [("y", *image)])
    status, (found,) = remarks(tmp_path)
    assert (status, found["version"], found["severity"]) == (0, 1, "warning")
    assert found["text"].startswith(
        "no early answers are learned: not for this model: set brisk_tolerance in the entry"
    )


def test_all_wrong_parameters_are_reported_at_once(tmp_path: Path) -> None:
    values = {"brisk_max_class": "Realtime", "intra_op_thread_count": "two"}
    said = {name: {"string_value": value} for name, value in values.items()}
    write(tmp_path, "net", config(parameters=said))
    status, (found,) = remarks(tmp_path)
    assert (status, found["severity"]) == (1, "problem")
    for name, value in values.items():
        assert re.search(f"{name} must be .*, not '{value}'", found["text"])


@pytest.mark.skipif(A_GPU.exists(), reason="needs a machine without a GPU")
def test_a_group_of_a_gpu_that_is_not_here_is_told_with_what_a_load_does(tmp_path: Path) -> None:
    write(tmp_path, "net", config(instance_group=[{"kind": "KIND_GPU", "count": 1}]))
    _, found = remarks(tmp_path)
    assert "where there is none a load of it is refused" in found[0]["text"]


@pytest.mark.parametrize(
    ("said", "is_told"),
    [(None, True), ("max_batch_size: 0", True), ('backend: "brisk"', False)],
)
def test_a_remote_entry_that_only_a_view_makes_brisk_s_is_named(
    said: str | None, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = write(tmp_path / "models", "net", said)
    arrived = tmp_path / "copy" / "1" / "model.onnx"
    arrived.parent.mkdir(parents=True)
    (entry / "1" / "model.onnx").rename(arrived)
    (entry / "1" / "model.remote").touch()
    monkeypatch.setattr("brisk.copies.connection.resolve", lambda file, meanwhile, keeps: arrived)
    status, found = remarks(tmp_path / "models")
    told = [remark for remark in found if 'should have backend: "brisk"' in remark["text"]]
    assert (status, [remark["severity"] for remark in told]) == (0, ["warning"] * is_told), found


def test_folders_that_are_no_repository_are_told_with_what_is_expected(tmp_path: Path) -> None:
    status, (found,) = remarks(tmp_path)
    assert (status, "my_model/1/model.onnx" in found["text"]) == (1, True)
    saved(tmp_path)
    status, (found,) = remarks(tmp_path)
    assert (status, "'model.onnx' lies in the repository itself" in found["text"]) == (1, True)
    (tmp_path / "empty").mkdir()
    status, (_, found) = remarks(tmp_path)
    assert (found["entry"], "it has no version" in found["text"]) == ("empty", True)


def test_one_entry_is_looked_at_by_itself(tmp_path: Path) -> None:
    write(tmp_path, "fine", None)
    write(tmp_path, "wrong", 'backend: "brisk"\nparameters { key: "brisk_clas" }')
    assert check(tmp_path / "fine")[0] == 0
    status, found = remarks(tmp_path / "wrong")
    assert status == 1
    assert [remark["entry"] for remark in found] == ["", "wrong"]


def test_a_misspelt_parameter_of_the_onnx_runtime_backend_is_named(tmp_path: Path) -> None:
    one = 'parameters { key: "%s" value { string_value: "2" } }'
    write(tmp_path, "m", 'backend: "brisk"\n' + one % "intra_op_thread_cout" + one % "own_name")
    status, found = remarks(tmp_path)
    assert status == 0
    texts = [remark["text"] for remark in found]
    assert any("did you mean 'intra_op_thread_count'" in text for text in texts)
    assert not any("'own_name'; did you mean" in text for text in texts)
