"""docs/migration.md's table of config.pbtxt against Triton's own description of that file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2

from brisk.stub.config.field_support import CACHED, DELAY, IGNORED, REFUSED, WARM_UP
from brisk.stub.config.session_tuning import TAKEN
from brisk.tuning import SESSION_KEYS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "migration.md").read_text()


def fields_of(message: Any, prefix: str = "") -> Iterator[str]:
    """Every field of a message type, nested ones in dots; a map is its values' message."""
    for field in message.fields:
        yield prefix + field.name
        nested = field.message_type
        if nested is not None and nested.GetOptions().map_entry:
            nested = nested.fields_by_name["value"].message_type
        if nested is not None:
            yield from fields_of(nested, f"{prefix}{field.name}.")


def rows() -> list[tuple[list[str], str, str]]:
    """Fields in full, what they do, and the test, of each row."""
    section = PAGE.partition("## Every field of `config.pbtxt`")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    found = []
    for line in lines:
        names, effect, shown = (cell.strip() for cell in line.strip("|").split(" | "))
        fields: list[str] = []
        whole = ""
        for name in re.findall(r"`([^`]+)`", names):
            whole = whole if name.startswith(".") else name
            fields.append(whole + name if name.startswith(".") else name)
        found.append((fields, effect, shown))
    return found


ROWS = rows()
NOTICES = (*IGNORED, DELAY, CACHED, WARM_UP)
EFFECTS = {field: effect for fields, effect, _ in ROWS for field in fields}


def test_every_field_that_triton_knows_has_its_row_and_no_other() -> None:
    told = [field for fields, _, _ in ROWS for field in fields]
    assert len(told) == len(set(told)), "a field is told of twice"
    known = set(fields_of(model_config_pb2.ModelConfig.DESCRIPTOR))
    assert known - set(told) == set(), "not in docs/migration.md"
    assert set(told) - known == set(), "in docs/migration.md, but no field"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][0])
def test_every_row_names_a_test_that_is_there(row: tuple[list[str], str, str]) -> None:
    _, effect, shown = row
    assert effect
    found = re.fullmatch(r"`(test_\w+\.py)`: `(test_\w+)`", shown)
    assert found, shown
    (file,) = (ROOT / "tests").rglob(found[1])
    assert f"def {found[2]}(" in file.read_text(), shown


@pytest.mark.parametrize("notice", NOTICES, ids=lambda notice: notice.field)
def test_what_the_code_says_at_load_is_told_with_its_level(notice: Any) -> None:
    level = {"warning": "warning", "info": "information"}[notice.level]
    assert f"said at load ({level})" in EFFECTS[notice.field]


@pytest.mark.parametrize("field", REFUSED)
def test_what_the_code_refuses_is_told(field: str) -> None:
    assert EFFECTS[field].startswith("**refused**")


def test_no_other_field_is_said_to_be_told_at_load() -> None:
    spoken = {notice.field for notice in NOTICES} | {"parameters"}
    for fields, effect, _ in ROWS:
        if "said at load" in effect:
            assert spoken & set(fields), fields


FEATURES = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.partition("## Every feature of Triton's ONNX Runtime backend")[2].splitlines()
    if line.startswith("| ") and not line.startswith(("| feature", "| ---"))
]


@pytest.mark.parametrize("row", FEATURES, ids=lambda row: row[0][:40])
def test_every_feature_is_judged_and_names_a_test_that_is_there(row: list[str]) -> None:
    _, verdict, differences, shown = row
    assert verdict in ("works", "differs", "not")
    assert verdict == "works" or differences != "none"
    found = re.fullmatch(r"`(test_\w+\.py)`: `(test_\w+)`", shown)
    assert found, shown
    (file,) = (ROOT / "tests").rglob(found[1])
    assert f"def {found[2]}(" in file.read_text(), shown


def test_every_parameter_that_is_read_has_its_feature() -> None:
    told = " ".join(row[0] for row in FEATURES)
    missing = [name for name in TAKEN - set(SESSION_KEYS) if f"`{name}`" not in told]
    assert missing == []
    assert {name.partition(".")[0] for name in SESSION_KEYS} == {"session", "optimization", "mlas"}
