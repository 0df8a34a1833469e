"""Commands on a pipeline's entry."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from brisk.cli.application import application
from brisk.cli.views.entries import configuration_text, pipeline_text
from brisk.errors import InvalidModelError
from support.pipeline_entries import describe_fork, write


def fork(entry: Path) -> Path:
    version = entry / "1"
    return write(version, describe_fork(version))


def test_a_pipeline_gets_a_complete_configuration(tmp_path: Path) -> None:
    fork(tmp_path / "fork")
    text = configuration_text(tmp_path / "fork", 16)
    assert 'name: "fork"' in text
    assert "max_batch_size: 16" in text
    assert text.count("TYPE_FP32") == 2
    assert text.count("dims: [4]") == 2


def test_a_pipeline_is_explained_by_its_nodes_and_variants(tmp_path: Path) -> None:
    fork(tmp_path / "fork")
    result = CliRunner().invoke(application, ["explain", str(tmp_path / "fork")])
    assert result.exit_code == 0, result.output
    assert "pipeline of 4 nodes, 1000 ms, proportional split" in result.output
    assert "node join (a = left.y, b = right.y)" in result.output
    assert "large: accuracy 0.95" in result.output


def test_a_network_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = fork(tmp_path / "fork")
    (path.parent / "join.onnx").write_bytes(b"no model")
    with pytest.raises(InvalidModelError, match="node 'join', variant 'only': "):
        list(pipeline_text(path))
