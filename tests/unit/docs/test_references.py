"""The reference pages and the dashboard against the code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from brisk.settings import VARIABLES
from brisk.stub.config import parameters
from brisk.telemetry.metrics import METRICS, Metric
from brisk.telemetry.statistics import published_names

ROOT = Path(__file__).resolve().parents[3]
GUIDES = (*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "how-it-works").glob("*.md"))
PAGES = {path.name: path.read_text() for path in sorted(GUIDES)}
README = (ROOT / "README.md").read_text()
DASHBOARD = ROOT / "docker" / "grafana-dashboard.json"
_VARIABLE = re.compile(r"\bBRISK_[A-Z][A-Z_]*[A-Z]\b")
_PATH = re.compile(
    r"`((?:tests|tools|docs|docker|client|triton_backend|model_repository)/[\w./*-]*[\w*])"
    r"(?:::\w+)?`"
)
ONLY_FOR_TESTS = {"BRISK_TEST_IMAGES"}


def test_every_environment_variable_of_the_code_is_documented_and_no_other() -> None:
    package = ROOT / "triton_backend" / "brisk"
    used = {name for file in package.rglob("*.py") for name in _VARIABLE.findall(file.read_text())}
    told = {name for text in (README, *PAGES.values()) for name in _VARIABLE.findall(text)}
    assert used - told == set(), "not in docs/configuration.md"
    assert told - used - ONLY_FOR_TESTS == set(), "documented, but not in the code"


def test_the_variables_that_are_known_are_those_of_the_page() -> None:
    rows = re.findall(r"^\| `(BRISK_[A-Z_]+)` \|", PAGES["configuration.md"], re.MULTILINE)
    assert set(rows) == VARIABLES


def test_every_parameter_of_an_entry_has_its_line() -> None:
    for name in parameters.ENTRY_PARAMETERS:
        found = re.search(rf"^\| `{name}` \| \S", PAGES["configuration.md"], re.MULTILINE)
        assert found, f"docs/configuration.md has no line of {name}"


def row_of(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.help} |"


@pytest.mark.parametrize("metric", METRICS.values(), ids=list(METRICS))
def test_every_metric_has_its_line(metric: Metric) -> None:
    assert row_of(metric) in PAGES["metrics.md"], f"run tools/make-metrics-pages: {row_of(metric)}"


def test_the_page_of_metrics_tells_of_no_other_ones() -> None:
    rows = re.findall(r"^\| `(brisk_\w+)` \|", PAGES["metrics.md"], re.MULTILINE)
    assert sorted(rows) == sorted(METRICS)


def test_the_dashboard_asks_for_metrics_and_labels_that_are_published() -> None:
    labels = {
        name: {*each.labels, "le"} for each in METRICS.values() for name in published_names(each)
    }
    document = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    assert len(queries) >= 10
    asked = set()
    for query in queries:
        names = re.findall(r"\bbrisk_\w+", query)
        assert names, query
        for name in names:
            assert name in labels, f"{name} in {query!r} is not published"
            asked.add(name)
        grouped = {
            word.strip()
            for group in re.findall(r"by \(([^)]*)\)", query)
            for word in group.split(",")
        }
        assert grouped <= set.union(*(labels[name] for name in names)), query
    shown = {name for name, each in METRICS.items() if set(published_names(each)) & asked}
    assert shown == set(METRICS), "run tools/make-metrics-pages"


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_pictures_are_as_their_script_draws_them_and_each_is_shown() -> None:
    tool = ROOT / "tools" / "make-pictures"
    done = subprocess.run(
        [sys.executable, str(tool), "--check"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run tools/make-pictures"
    for picture in (ROOT / "docs" / "pictures").iterdir():
        assert any(f"pictures/{picture.name})" in text for text in PAGES.values()), picture.name
        assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_every_path_that_a_page_names_exists() -> None:
    """Paths of the repository in backticks: tests, tools, sources, pages."""
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]
    named = [(page, path) for page in pages for path in _PATH.findall(page.read_text())]
    assert any(path.startswith("tests/") for _, path in named)
    for page, path in named:
        assert list(ROOT.glob(path)), f"{page.relative_to(ROOT)} names {path}"


def test_every_test_that_a_page_names_exists() -> None:
    for page in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text()):
            assert f"def {name}(" in (ROOT / file).read_text(), f"{page.name}: {file}::{name}"


MECHANISMS = sorted((ROOT / "docs" / "how-it-works").glob("*.md"))


@pytest.mark.parametrize("page", MECHANISMS, ids=lambda page: page.stem)
def test_a_page_on_a_mechanism_has_a_picture_and_says_what_it_costs(page: Path) -> None:
    text = page.read_text()
    assert "](../pictures/" in text
    assert "## What it costs, and when it does not help" in text


def test_the_front_pages_are_read_in_minutes() -> None:
    assert 100 <= len(README.splitlines()) <= 130
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 150


FIELDS = ("- **Date**: ", "- **Status**: ", "## Context", "## Decision", "## Measured price")


def test_every_design_record_has_its_fields_and_its_line_in_the_index() -> None:
    folder = ROOT / "docs" / "design"
    lines = []
    for number, record in enumerate(sorted(folder.glob("0*.md")), start=1):
        title, *rest = record.read_text().splitlines()
        assert record.name.startswith(f"{number:04}-")
        for field in FIELDS:
            assert any(each.startswith(field) for each in rest), f"{record.name} lacks {field}"
        lines.append(f"{number}. [{title.removeprefix('# ')}]({record.name})")
    index = (folder / "README.md").read_text()
    assert re.findall(r"^\d+\. .*$", index, re.MULTILINE) == lines
