"""README's results and the pages of docs/benchmarks against the JSON that they are made from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from brisk_client.report import Check
from brisk_client.tails import CURVE
from publication.checks import shown, worst_check
from publication.latency_plot import QUANTILES, SIDES, latency_plot
from publication.pages import (
    BEGIN,
    END,
    README_ROWS,
    page,
    readme_table,
    with_table,
)
from publication.pictures import PICTURES, all_pictures, left_as_they_are, picture_of
from publication.promise_plot import promise_plot
from publication.runs import PublishedRun, UnusableRunError, read_run, read_runs
from publication.start_plot import ENGINES, PARTS, start_plot
from support.honest_checks import holds, is_honest

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "docs" / "benchmarks" / "data"
README = (ROOT / "README.md").read_text()
RUNS = read_runs(DATA)

_NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w.-]*[a-zA-Z_])")


def results_section() -> str:
    return README.partition("## Results\n")[2].partition("\n## ")[0]


def table_cells() -> list[list[str]]:
    lines = results_section().partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def report(**changed: Any) -> dict[str, Any]:
    """A published report, whole but for what is changed."""
    return {
        "name": "hop",
        "command": "brisk bench hop",
        "date": "2026-01-01T00:00:00Z",
        "commit": "a" * 40,
        "dirty": False,
        "machine": {"processor": "one", "cores": 2},
        "versions": {"python": "3.11"},
        "rows": [{"part": "hop", "p50_us": 98.76543}],
        "checks": [{"name": "p50, ms", "value": 0.09876, "expected": "<= 0.15", "ok": True}],
        "notes": ["a note"],
        **changed,
    }


def run_of(folder: Path, name: str = "hop", **changed: Any) -> PublishedRun:
    file = folder / f"{name}.json"
    file.write_text(json.dumps(report(**changed)))
    return read_run(file)


def test_the_pages_are_what_the_generator_makes_of_the_data() -> None:
    tool = ROOT / "tools" / "make-results"
    done = subprocess.run(
        [sys.executable, str(tool), "--check"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run tools/make-results"


@pytest.mark.parametrize("run", RUNS.values(), ids=list(RUNS))
def test_every_check_says_what_its_value_and_its_expectation_say(run: PublishedRun) -> None:
    dishonest = [check for check in run.checks if not is_honest(check)]
    assert not dishonest, run.file


def test_every_figure_of_the_readme_is_one_of_the_run_that_its_row_leads_to() -> None:
    rows = table_cells()
    assert rows, "the table has rows"
    for label, measured, _, _, link in rows:
        found = re.search(r"\(docs/benchmarks/([\w-]+)\.md\)$", link)
        assert found is not None, f"'{label}' leads to no page"
        document = json.loads((DATA / f"{found[1]}.json").read_text())
        values = [check["value"] for check in document["checks"]]
        values += [value for row in document["rows"] for value in row.values()]
        if measured in values:  # the reason why there is no figure
            continue
        figures = _NUMBER.findall(measured)
        assert figures, label
        for figure in figures:
            digits = len(figure.partition(".")[2])
            assert any(
                isinstance(value, (int, float)) and round(value, digits) == float(figure)
                for value in values
            ), f"'{label}': {figure} is nowhere in {found[1]}.json"


def test_results_have_no_figure_beside_the_generated_table() -> None:
    before, _, rest = results_section().partition(BEGIN)
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", before + rest.partition(END)[2])
    assert not _NUMBER.findall(prose), "figures come from docs/benchmarks/data only"
    for row in README_ROWS:
        assert not _NUMBER.findall(re.sub(r"ResNet-\d+|CIFAR-\d+", "", row.label)), row.label


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"commit": None}, "commit must be of type str"),
        ({"commit": "abc"}, "no full digest"),
        ({"machine": {}}, "machine is empty"),
        ({"versions": {}}, "versions are empty"),
        ({"notes": ["kept in /work/somewhere/x"]}, "a place of one machine: /work/somewhere/x"),
        ({"rows": [], "checks": []}, "neither rows nor checks"),
        ({"checks": [{"name": "x", "value": 1}]}, "check 0 lacks 'expected'"),
        ({"source": "hearsay"}, "source is 'hearsay'"),
        ({"source": "reported", "notes": []}, "who reported"),
    ],
)
def test_a_report_without_its_origin_is_refused(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnusableRunError, match=re.escape(message)):
        run_of(tmp_path, **changed)


def test_what_others_reported_needs_no_commit_and_its_page_says_so(tmp_path: Path) -> None:
    run = run_of(tmp_path, source="reported", commit=None, machine={}, versions={}, command="")
    assert run.is_reported
    assert "commit" not in page(run).partition("## Checks")[0]


@pytest.mark.parametrize(
    ("value", "expected", "verdict"),
    [
        (1.02, "<= 1.02", True),
        (1.03, "<= 1.02", False),
        (0, "0", True),
        (2, "0", False),
        (3, ">= 4", False),
        (1.0, "== 1", True),
        (1.0, "> 1", False),
        ("too few answers: 40 of 100", "<= 1.1", False),
        (None, "<= 400", False),
        ("2 of 12", "at least 1", True),
        ("0 of 12", "at least 1", False),
        ("small 0.910 large 0.950", "not falling", True),
        ("small 0.960 large 0.950", "not falling", False),
        ("not those of brisk", "all", False),
        (False, "rtol 1e-3, atol 1e-4", False),
        (0, 0, True),
        ("10 of 10", "all", True),
        ("9 of 10", "all", False),
        ("7 of 12", "more than half", True),
        ("6 of 12", "more than half", False),
        ("the model is not there", "an answer", False),
        (3.0, "fast", False),
        ("9 of 99, exact 95% interval 4.2% to 16.6%", "an interval that reaches down to 5%", True),
        (
            "20 of 99, exact 95% interval 12.8% to 29%",
            "an interval that reaches down to 5%",
            False,
        ),
    ],
)
def test_checks_are_judged_by_what_they_expect(value: Any, expected: Any, verdict: bool) -> None:
    assert holds(Check("c", value, expected, verdict)) is verdict
    assert is_honest(Check("c", value, expected, verdict))
    lies = Check("c", value, expected, not verdict)
    may_be_rounded = verdict and isinstance(value, float)
    assert may_be_rounded or not is_honest(lies)


def test_a_value_that_was_rounded_to_its_limit_may_have_missed_it_and_no_other() -> None:
    assert is_honest(Check("c", 1.02, "<= 1.02", False))
    assert not is_honest(Check("c", 1.01, "<= 1.02", False))
    assert not is_honest(Check("c", 1.03, "<= 1.02", True))


def test_a_figure_is_shown_on_its_side_of_the_limit() -> None:
    assert shown(Check("c", 1.0204, "<= 1.02", False)) == "1.0204"
    assert shown(Check("c", 1.0204, "<= 1.1", True)) == "1.02"
    assert shown(Check("c", 12905.4, ">= 3", True)) == "12905"


def test_of_several_checks_the_readme_shows_the_worst(tmp_path: Path) -> None:
    checks = [
        {"name": "a: ratio", "value": 1.0, "expected": "<= 1.15", "ok": True},
        {"name": "b: ratio", "value": 1.2, "expected": "<= 1.15", "ok": False},
        {"name": "c: ratio", "value": 1.4, "expected": "<= 1.5", "ok": True},
    ]
    run = run_of(tmp_path, checks=checks)
    assert worst_check(run, r".*: ratio").name == "b: ratio"
    assert worst_check(run, r"[ac]: ratio").name == "c: ratio"
    with pytest.raises(UnusableRunError, match="no check is called"):
        worst_check(run, "d")


def test_a_row_is_made_of_its_run_and_left_out_without_it(tmp_path: Path) -> None:
    name = "errors, lost requests among them"
    checks = [{"name": name, "value": 4, "expected": "0", "ok": False}]
    run = run_of(tmp_path, "soak", checks=checks)
    lines = readme_table({"soak": run}).splitlines()
    assert len(lines) == 5
    assert "| 4 | 0 | ✗ | [`brisk bench hop`](docs/benchmarks/soak.md) |" in lines[3]
    text = with_table(f"before\n{BEGIN}\nold\n{END}\nafter\n", "\n".join(lines))
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")


def points_of(drawn: str, kind: str) -> list[tuple[float, float]]:
    """Of the longest line of that kind; the shorter one is the legend's."""
    lines = re.findall(rf'<polyline points="([^"]+)" class="curve {kind}"/>', drawn)
    longest = max(lines, key=len)
    return [(float(x), float(y)) for x, y in (each.split(",") for each in longest.split())]


def bars_of(drawn: str, kind: str) -> list[float]:
    """Widths of all but the heading's."""
    found = re.findall(rf'width="([\d.]+)" height="[\d.]+" class="{kind}"', drawn)
    return [float(width) for width in found[1:]]


def side_row(side: str, **changed: Any) -> dict[str, Any]:
    """Latencies from 10 ms to 20 ms, as of 1,000 answers, evenly."""
    quantiles = [10.0 + 10 * share for share in CURVE if share <= 0.99]
    return {"workload": "C", "side": side, QUANTILES: quantiles, **changed}


def test_the_plot_of_latency_has_a_curve_for_each_side_that_ends_where_its_answers_do(
    tmp_path: Path,
) -> None:
    rows = [side_row(side) for side in SIDES]
    rows += [side_row("triton one run", stage="screening"), side_row("padded", workload="D")]
    drawn = latency_plot(run_of(tmp_path, rows=rows))
    assert drawn.count("<polyline") == 2 * len(SIDES)
    points = points_of(drawn, "ours")
    assert len(points) == 100, "0 % to 99 %"
    assert points[0][1] > points[50][1] > points[-1][1], "shares grow upwards"
    middle = (points[0][0] + points[-1][0]) / 2
    assert points[50][0] > middle, "by logarithms 15 is more than half-way from 10 to 20"
    for label, _ in SIDES.values():
        assert f">{label.replace(chr(39), '&#x27;')}</text>" in drawn


@pytest.mark.parametrize(
    "wrong",
    [
        {QUANTILES: [10.0] * 40},
        {QUANTILES: [0.0] * 100},
        {QUANTILES: [20.0, *[10.0] * 99]},
        {QUANTILES: None},
        {"workload": "D"},
    ],
)
def test_a_plot_without_a_side_or_its_distribution_is_refused(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    rows = [*[side_row(side) for side in SIDES][1:], side_row("RT-only", **wrong)]
    with pytest.raises(UnusableRunError, match="'RT-only', wanted is one"):
        latency_plot(run_of(tmp_path, rows=rows))


def start_row(engine: str, **changed: Any) -> dict[str, Any]:
    parts = {"stub_ms": 40.0, "parse_ms": None, "load_ms": 20.0, "run_ms": 60.0}
    return {"model": "resnet50", "engine": engine, "first_ms": 121.0, **parts, **changed}


def test_the_plot_of_first_answers_stacks_what_was_measured(tmp_path: Path) -> None:
    rows = [start_row(engine) for engine in ENGINES]
    rows[0] = start_row("brisk", parse_ms=10.0)
    drawn = start_plot(run_of(tmp_path, rows=rows))
    stub, parse, load, run = (bars_of(drawn, kind) for kind, _ in PARTS.values())
    assert stub == pytest.approx([2 * width for width in load], abs=0.2)
    assert run == pytest.approx([3 * width for width in load], abs=0.2)
    assert parse == pytest.approx([load[0] / 2, *[0.0] * (len(ENGINES) - 1)], abs=0.2)
    assert drawn.count(">121<") == len(ENGINES), "the median of the whole, in a column"
    assert drawn.count(">10<") == 1
    assert drawn.count(">in load<") == len(ENGINES) - 1


def test_a_plot_of_first_answers_without_an_engine_or_a_part_is_refused(tmp_path: Path) -> None:
    rows = [start_row(engine) for engine in ENGINES]
    for wrong in (rows[1:], [start_row("brisk", load_ms=None), *rows[1:]]):
        with pytest.raises(UnusableRunError, match="'brisk', wanted is one"):
            start_plot(run_of(tmp_path, rows=wrong))


def promise_row(side: str, speed_up: float, **changed: Any) -> dict[str, Any]:
    return {"side": side, "batch": 1, "speed_up": speed_up, "agreement": 0.9876, **changed}


def test_the_plot_of_promises_shows_what_each_costs_and_what_was_measured(tmp_path: Path) -> None:
    rows = [
        promise_row("bare", 1.0),
        promise_row("caches, 99.5%", 2.0, early_agreement=0.9988),
        promise_row("caches, 97%", 4.0),
        promise_row("caches, 97%", 9.0, batch=8),
    ]
    drawn = promise_plot(run_of(tmp_path, rows=rows))
    (loose_x, loose_y), (strict_x, strict_y) = points_of(drawn, "ours")
    assert loose_x < strict_x
    assert loose_y < strict_y, "faster is higher"
    assert drawn.count("all 98.76%") == 2
    assert drawn.count("early 99.88%") == 1
    with pytest.raises(UnusableRunError, match="1 rows are of a promise"):
        promise_plot(run_of(tmp_path, rows=rows[:2]))


def test_a_picture_stays_as_it_is_where_its_run_is_older_than_what_it_shows(
    tmp_path: Path,
) -> None:
    name = "preempt-workloads"
    old = run_of(tmp_path, name, rows=[{"workload": "C", "side": side} for side in SIDES])
    assert [*all_pictures({name: old})] == []
    assert [*left_as_they_are({name: old})] == [
        "realtime.svg is left as it is: no row of preempt-workloads.json has quantiles_ms"
    ]
    assert "pictures/" not in page(old)
    new = run_of(tmp_path, name, rows=[side_row(side) for side in SIDES])
    assert [file for file, _ in all_pictures({name: new})] == ["realtime.svg"]
    assert [*left_as_they_are({name: new})] == []
    assert picture_of(new) is PICTURES[name]
    text = page(new)
    assert "](../pictures/realtime.svg)" in text
    assert "quantiles" not in text, "a list is in the JSON only"
