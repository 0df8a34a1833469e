"""Configurations in the text format, read as protobuf reads them."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from brisk.view.text_format import UnreadableTextError, parse, quoted

TEXT = """
name: 'a' "b\\n\\x41\\101" # comment { [
max_batch_size : 0x10;
input [ { name: "x", dims: [ -1, 3 ] data_type: TYPE_FP32 }, < name: "y" dims: 4 dims: -5 > ]
output { name: "\\303\\274" }
dynamic_batching { }
parameters: { key: "k" value: { string_value: "{v}" } }
"""


def test_a_text_is_read_as_protobuf_reads_it() -> None:
    message, places = parse(TEXT)
    wanted = text_format.Parse(TEXT, model_config_pb2.ModelConfig())
    assert message["name"] == [wanted.name]
    assert message["max_batch_size"] == [wanted.max_batch_size] == [16]
    start, end = places["max_batch_size"]
    assert TEXT[start:end] == "0x10"
    assert [tensor["name"] for tensor in message["input"]] == [["x"], ["y"]]
    assert [tensor["dims"] for tensor in message["input"]] == [list(t.dims) for t in wanted.input]
    assert message["output"][0]["name"] == [wanted.output[0].name] == ["ü"]
    assert message["dynamic_batching"] == [{}]
    assert message["parameters"][0]["value"] == [{"string_value": ["{v}"]}]


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a:",
        "a {",
        "a }",
        "a: [1, ",
        "a: [1 2]",
        ": 1",
        'a: "b',
        "a: {{",
        "a 1",
        "a { " * 5000,
    ],
)
def test_what_is_no_such_text_is_told_with_its_line(text: str) -> None:
    with pytest.raises(UnreadableTextError, match="line 2"):
        parse("\n" + text)


@given(st.text())
def test_a_quoted_text_is_read_as_it_was(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    assert parse(f"name: {quoted(text)}").message == {"name": [text]}
    config = text_format.Parse(f"name: {quoted(text)}", model_config_pb2.ModelConfig())
    assert config.name == text


@given(st.text(alphabet="ab{}[]<>:;,\"'\\#\n 01-."))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text)
    except UnreadableTextError:
        return
