"""The text of an entry for Triton: the user's, and behind it what that leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from brisk.errors import InvalidConfigurationError
from brisk.protocol.entry_files import REFUSED
from brisk.view.entry_text import entry_text, read_config, written_config
from brisk.view.plan import expected_devices
from support.server.entries import doubled, write_entry

SERVED = ("brisk", "onnxruntime")


def completed(directory: Path) -> model_config_pb2.ModelConfig:
    """Return the completed configuration, read like Triton reads it."""
    text, lost = entry_text(directory, SERVED)
    assert text is not None
    assert lost is None
    assert text.startswith((directory / "config.pbtxt").read_text())
    return text_format.Parse(text, model_config_pb2.ModelConfig())


@pytest.mark.parametrize(
    ("config", "size", "batches"),
    [
        ("", 4, True),
        ('platform: "onnxruntime_onnx"', 4, True),
        ("backend: 'brisk' # a comment\nmax_batch_size: 0", 4, True),
        ('backend: "brisk", max_batch_size: 8;', 8, True),
        ('backend: "brisk", max_batch_size: 1;', 1, False),
    ],
)
def test_what_a_text_leaves_out_stands_behind_it(
    tmp_path: Path, config: str, size: int, batches: bool
) -> None:
    model = completed(write_entry(tmp_path, "model", doubled(), config))
    assert model.max_batch_size == size
    assert model.HasField("dynamic_batching") == batches
    assert [(tensor.name, list(tensor.dims)) for tensor in model.input] == [("x", [4])]
    assert [tensor.name for tensor in model.output] == ["y", "z"]


@pytest.mark.parametrize(
    ("config", "counts"),
    [
        ("", [1]),
        ('platform: "onnxruntime_onnx" max_batch_size: 8', [1]),
        ("input { name: 'x' } output { name: 'y' }", [1]),
        ('backend: "brisk"', []),
        ("instance_group { kind: KIND_CPU }", [0]),
        ("instance_group { count: 2 } instance_group { count: 3 }", [2, 3]),
    ],
)
def test_an_entry_of_onnx_runtime_s_backend_that_says_nothing_of_instances_has_one(
    tmp_path: Path, config: str, counts: list[int]
) -> None:
    groups = completed(write_entry(tmp_path, "model", doubled(), config)).instance_group
    assert [group.count for group in groups] == counts
    assert all(group.kind in (group.KIND_AUTO, group.KIND_CPU) for group in groups)


def test_what_cannot_be_completed_says_why(tmp_path: Path) -> None:
    directory = write_entry(tmp_path, "model", b"no model", 'backend: "brisk"')
    reason = completed(directory).parameters[REFUSED].string_value
    assert str(directory / "1" / "model.onnx") in reason


def test_a_field_that_is_not_known_is_left_to_triton(tmp_path: Path) -> None:
    config = 'backend: "brisk" # \xe4\nno_such_field { a: [1, 2] b < c: "d" > }'
    directory = write_entry(tmp_path, "model", doubled(), config)
    (directory / "config.pbtxt").write_bytes(config.encode("latin-1"))
    text, _ = entry_text(directory, SERVED)
    assert text is not None
    assert text.encode("utf-8", "surrogateescape").startswith(config.encode("latin-1"))
    assert "max_batch_size: 4" in text


@pytest.mark.parametrize(
    "config", ["max_batch_size: {{", "a { " * 5000, 'name: "\xe4', "backend: 1"]
)
def test_what_is_no_such_text_stays_as_it_is(tmp_path: Path, config: str) -> None:
    directory = write_entry(tmp_path, "model", doubled(), config)
    assert entry_text(directory, SERVED) == (None, None)
    with pytest.raises(InvalidConfigurationError, match=f"the config.pbtxt of {directory}"):
        read_config(directory)


@given(text=st.text(alphabet="ab{}[]<>:;,\"'\\#\n 01-."))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    directory = tmp_path_factory.mktemp("entry")
    (directory / "config.pbtxt").write_text(text)
    entry_text(directory, SERVED)


@pytest.mark.parametrize(
    ("config", "lost"),
    [
        ('backend: "python"', "lacks inputs or outputs"),
        ('backend: "tensorrt" input { } output { }', "may add to its config.pbtxt"),
        ('backend: "tensorrt" input { } output { } max_batch_size: 2 dynamic_batching { }', None),
        ('backend: "python" input { } output { }', None),
        ('platform: "ensemble"', None),
    ],
)
def test_of_other_backends_entries_it_is_told_whether_they_lose(
    tmp_path: Path, config: str, lost: str | None
) -> None:
    text, loss = entry_text(write_entry(tmp_path, "model", b"", config), SERVED)
    assert text is None
    assert (loss is None) if lost is None else (lost in str(loss))


def test_a_configuration_is_handed_over_as_triton_does(tmp_path: Path) -> None:
    config = 'parameters { key: "brisk_class" value { string_value: "realtime" } }'
    directory = write_entry(tmp_path, "model", doubled(), config)
    assert written_config(directory) == {
        "parameters": {"brisk_class": {"string_value": "realtime"}}
    }


def test_devices_are_expected_where_an_entry_says_so(tmp_path: Path) -> None:
    groups = "instance_group { kind: KIND_GPU gpus: [0, 2] } instance_group { kind: KIND_CPU }"
    write_entry(tmp_path, "model", doubled(), f'backend: "brisk" {groups}')
    write_entry(tmp_path, "other", b"", 'backend: "python" instance_group { gpus: 1 }')
    assert expected_devices([tmp_path], SERVED) == ["cpu", "cuda:0", "cuda:2"]
