"""Complete configurations from ONNX files."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from onnx import TensorProto, helper

from brisk.cli.views.entries import configuration_text
from brisk.cli.views.model_files import version_files
from brisk.errors import InvalidConfigurationError, InvalidModelError
from brisk.view.entry_text import SCHEMA, entry_text
from support.models.identity_models import FLOAT_BATCH, Shape, write_model
from support.server.entries import make_model, write_entry


def test_a_dynamic_first_dimension_becomes_triton_batching(tmp_path: Path) -> None:
    entry = write_model(tmp_path / "net", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    assert configuration_text(entry, 16) == (
        'name: "net"\n'
        "max_batch_size: 16\n"
        "input {\n"
        '  name: "x"\n'
        "  data_type: TYPE_FP32\n"
        "  dims: [3, -1]\n"
        "}\n"
        "output {\n"
        '  name: "y"\n'
        "  data_type: TYPE_FP32\n"
        "  dims: [3, -1]\n"
        "}\n"
        "dynamic_batching {\n"
        "}\n"
        'backend: "brisk"\n'
    )


def test_batching_can_be_declined(tmp_path: Path) -> None:
    entry = write_model(tmp_path, {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    text = configuration_text(entry, 0)
    assert "max_batch_size" not in text
    assert "dims: [-1, 3, -1]" in text


@pytest.mark.parametrize("shape", [[4, 3], []])
def test_a_model_with_a_fixed_or_no_first_dimension_is_unbatched(
    tmp_path: Path, shape: Shape
) -> None:
    kind = (TensorProto.INT64, shape)
    entry = write_model(tmp_path, {"x": kind}, {"y": kind})
    for text in (configuration_text(entry), configuration_text(entry, 0)):
        assert "max_batch_size" not in text
        assert "reshape" not in text  # Triton refuses a value without sizes where it has no batch
    told = r"max_batch_size is 8, but 'x' of the model has shape .*whose first size is not dynamic"
    with pytest.raises(InvalidConfigurationError, match=told):
        configuration_text(entry, 8)


def test_a_batch_that_the_outputs_do_not_have_is_refused(tmp_path: Path) -> None:
    turned = make_model(
        [helper.make_node("Transpose", ["x"], ["y"])],
        [("x", TensorProto.FLOAT, ["rows", "columns"])],
        [("y", TensorProto.FLOAT, ["columns", "rows"])],
    )
    entry = write_entry(tmp_path, "turned", turned)
    assert "max_batch_size" not in configuration_text(entry)
    with pytest.raises(InvalidConfigurationError, match="max_batch_size is 8, but an output's"):
        configuration_text(entry, 8)


@pytest.mark.parametrize("shape", [["batch", 3], [4, 3], ["batch"], []])
def test_what_is_written_is_what_an_entry_without_it_is_served_with(
    tmp_path: Path, shape: Shape
) -> None:
    kind = (TensorProto.FLOAT, shape)
    entry = write_model(tmp_path / "net", {"x": kind}, {"y": kind})
    bare, _ = entry_text(entry, ("onnxruntime",))
    assert bare is not None
    served = text_format.Parse(bare, SCHEMA.ModelConfig())
    written = text_format.Parse(configuration_text(entry), SCHEMA.ModelConfig())
    assert (written.name, written.backend) == ("net", "brisk")
    served.MergeFrom(SCHEMA.ModelConfig(name="net", backend="brisk"))
    served.ClearField("instance_group")  # of one, which an entry of Brisk's has anyway
    assert written == served


def test_one_value_per_row_is_declared_as_a_reshaped_scalar(tmp_path: Path) -> None:
    kind = (TensorProto.STRING, ["batch"])
    text = configuration_text(write_model(tmp_path, {"x": kind}, {"y": kind}), 8)
    assert "data_type: TYPE_STRING\n  dims: [1]\n  reshape {\n  }" in text


def test_an_element_type_unknown_to_triton_is_refused_by_name(tmp_path: Path) -> None:
    kind = (TensorProto.FLOAT8E4M3FN, ["batch", 2])
    entry = write_model(tmp_path, {"x": kind}, {"y": kind})
    with pytest.raises(InvalidModelError, match="'x' has ONNX element type 17, unknown to Triton"):
        configuration_text(entry, 8)


def test_the_newest_version_counts_by_number_not_by_text(tmp_path: Path) -> None:
    for version, size in ((2, 20), (10, 100)):
        kind = (TensorProto.FLOAT, ["batch", size])
        write_model(tmp_path, {"x": kind}, {"y": kind}, version)
    assert list(version_files(tmp_path)) == [2, 10]
    assert "dims: [100]" in configuration_text(tmp_path, 8)


def test_what_an_entry_says_itself_stays_and_the_rest_is_added(tmp_path: Path) -> None:
    entry = write_model(tmp_path / "net", {"x": FLOAT_BATCH}, {"y": FLOAT_BATCH})
    own = (
        "# ours\n"
        'platform: "onnxruntime_onnx"\n'
        "max_batch_size: 32\n"
        'parameters { key: "brisk_max_class" value { string_value: "realtime" } }\n'
    )
    (entry / "config.pbtxt").write_text(own)
    text = configuration_text(entry)
    assert text.startswith(own)
    written = text_format.Parse(text, SCHEMA.ModelConfig())
    assert (written.platform, written.backend, written.name) == ("onnxruntime_onnx", "", "net")
    assert written.max_batch_size == 32
    assert [tensor.name for tensor in (*written.input, *written.output)] == ["x", "y"]
    (entry / "config.pbtxt").write_text(text)
    assert configuration_text(entry) == text.rstrip()
