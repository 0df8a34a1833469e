"""README's results and the pages of docs/benchmarks against the JSON that they are made from."""

from __future__ import annotations

import operator
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from brisk_bench.harness.report import Check, check_limit
from publication.checks import shown, worst_check, worst_shown
from publication.pages import all_pages, page_text
from publication.readme import (
    BEGIN,
    END,
    README_ROWS,
    ReadmeRow,
    readme_table,
    runs_of,
    with_table,
)
from publication.runs import PublishedRun, UnusableRunError, read_runs
from publication.standing import all_flaws, published_commit
from publication.subjects import PAGES, Page, Part, page_of
from support.published_runs import holds, is_honest, run_of

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


def page(run: PublishedRun, flaws: str = "") -> str:
    """Of a page with this run alone."""
    part = Part(run.file)
    return page_text(Page("p", "A page", "It is one.", (part,)), [(part, run)], {run.file: flaws})


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
        (shown_page,) = (each for each in PAGES if each.name == found[1])
        runs = [run for _, run in shown_page.runs(RUNS)]
        values = [check.value for run in runs for check in run.checks]
        values += [value for run in runs for row in run.rows for value in row.values()]
        if measured in values:  # the reason why there is no figure
            continue
        figures = _NUMBER.findall(measured)
        assert figures, label
        for figure in figures:
            digits = len(figure.partition(".")[2])
            assert any(
                isinstance(value, (int, float)) and round(value, digits) == float(figure)
                for value in values
            ), f"'{label}': {figure} is in no run of {found[1]}"


def test_the_readme_shows_full_runs_of_one_commit_with_aims_that_are_numbers() -> None:
    shown_runs = [run for row in README_ROWS for run in runs_of(row, RUNS)]
    assert shown_runs
    assert len({run.commit for run in shown_runs}) == 1
    for run in shown_runs:
        assert not run.dirty, run.file
        assert not {"--quick", "--threads"} & set(run.command.split()), run.file
    for label, measured, aim, verdict, _ in table_cells():
        assert re.fullmatch(r"[≤≥] [\d.]+", aim), label
        is_number = re.fullmatch(r"-?[\d.]+", measured)
        if is_number:
            compare = operator.le if aim[0] == "≤" else operator.ge
            assert compare(float(measured), float(aim[2:])) == (verdict == "✓"), label
        else:
            assert verdict == "✗", f"'{label}': {measured}"


def test_there_are_ten_pages_at_most_and_each_run_has_one_or_a_line() -> None:
    pages = all_pages(RUNS)
    assert len(pages) <= 1 + 10
    for file in RUNS:
        shown_page = page_of(file)
        if shown_page is None:
            assert f"](data/{file}.json)" in pages["README.md"]
        else:
            assert f"](data/{file}.json)" in pages[f"{shown_page.name}.md"]


def test_a_page_may_be_made_of_several_files_with_a_common_stem(tmp_path: Path) -> None:
    runs = {
        name: run_of(tmp_path, name, rows=[{"side": f"of {name[-1]}"}], notes=["a note"])
        for name in ("preempt-workloads-A", "preempt-workloads-B")
    }
    pages = all_pages(runs)
    assert list(pages) == ["README.md", "preempt-workloads.md"]
    text = pages["preempt-workloads.md"]
    assert text.index("## Workload A\n") < text.index("of A") < text.index("## Workload B\n")
    assert text.count("- a note\n") == 1, "what both say is said once"
    assert pages["README.md"].count("](preempt-workloads.md)") == 2


@pytest.mark.parametrize(
    ("changed", "flaws"),
    [
        ({}, ""),
        ({"command": "brisk bench soak --quick"}, "quick"),
        ({"dirty": True}, "uncommitted changes"),
        ({"commit": "b" * 40}, "other commit"),
        ({"commit": "b" * 40, "command": "brisk bench soak --quick"}, "quick, other commit"),
        (
            {"command": "brisk bench soak --rounds 3 --no-open-loop"},
            "less than by default (--rounds --no-open-loop)",
        ),
        (
            {"command": "brisk bench soak --rounds=3 --side preemptive --triton-setting free"},
            "less than by default (--rounds --side --triton-setting)",
        ),
    ],
)
def test_a_run_that_is_short_or_of_another_state_says_so_and_is_in_no_table_of_several(
    tmp_path: Path, changed: dict[str, Any], flaws: str
) -> None:
    checks = [{"name": "errors, lost requests among them", "value": 0, "expected": "0"}]
    checks[0]["ok"] = True
    runs = {name: run_of(tmp_path, name) for name in ("start", "density", "hop")}
    runs["soak"] = run_of(tmp_path, "soak", checks=checks, **changed)
    assert published_commit(runs.values()) == "a" * 40
    assert all_flaws(runs) == {"start": "", "density": "", "hop": "", "soak": flaws}
    row = README_ROWS[-1]
    assert row.file == "soak"
    assert runs_of(row, runs) == ([] if flaws else [runs["soak"]])
    pages = all_pages(runs)
    assert f"| {flaws or '✓'} | errors, lost" in pages["soak.md"]
    in_the_table = "[Soak and pressure: soak](soak.md) | ✓ 1 of 1 |"
    assert (in_the_table in pages["README.md"]) == (not flaws)
    as_a_line = f"- [Soak and pressure: soak](soak.md): {flaws} (`"
    assert (as_a_line in pages["README.md"]) == bool(flaws)


def test_of_as_many_full_runs_the_later_commit_counts_and_runs_without_a_page_do_not(
    tmp_path: Path,
) -> None:
    ours, other = "a" * 40, "b" * 40
    early, late = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    runs = [
        run_of(tmp_path, "start", commit=ours, date=late),
        run_of(tmp_path, "density", commit=other, date=early),
        run_of(tmp_path, "hop", commit=other, date=late),
        run_of(tmp_path, "conformance", commit=other, date=late),
    ]
    assert published_commit(runs) == ours
    assert published_commit([]) == ""


def test_threads_that_were_given_are_not_in_the_readme(tmp_path: Path) -> None:
    row = ReadmeRow("warm", "warm-real", "p50, ms")
    for given in ("--threads 1", "--threads=1"):
        run = run_of(tmp_path, "warm-real", command=f"brisk bench warm {given}")
        assert runs_of(row, {"warm-real": run}) == []


def test_a_miss_never_looks_like_a_hit() -> None:
    assert shown(Check("c", 1.1, "<= 1.1", False)) == "more than 1.1"
    assert shown(Check("c", 0.9, ">= 0.9", False)) == "less than 0.9"
    assert check_limit("c", 1.10004, "<=", 1.1, 3).value == 1.10004
    assert check_limit("c", 1.1234567, "<=", 1.1, 3).value == 1.123
    assert check_limit("c", 1.1 + 1e-15, "<=", 1.1, 3).value > 1.1


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
    assert worst_check([run], r".*: ratio").name == "b: ratio"
    assert worst_check([run], r"[ac]: ratio").name == "c: ratio"
    with pytest.raises(UnusableRunError, match="no check is called"):
        worst_check([run], "d")
    other = run_of(tmp_path, "other", checks=[{**checks[1], "name": "d: ratio", "value": 1.3}])
    assert worst_check([run, other], r".*: ratio").name == "d: ratio"
    with pytest.raises(UnusableRunError, match="other: no check is called"):
        worst_check([run, other], "a: ratio")


def test_where_a_run_has_no_figure_the_readme_says_so_beside_the_worst_of_the_others(
    tmp_path: Path,
) -> None:
    def run(file: str, value: float | str) -> PublishedRun:
        check = {"name": f"{file}: ratio", "value": value, "expected": "<= 1.1", "ok": False}
        return run_of(tmp_path, file, checks=[check])

    runs = [run("a", "no figure, not quiet"), run("b", 1.2), run("c", 1.3)]
    assert worst_shown(runs, r".*: ratio") == "1.3, and 1 of 3 without a figure"
    assert worst_shown(runs[1:], r".*: ratio") == "1.3"
    assert worst_shown(runs[:1], r".*: ratio") == "no figure, not quiet"
    assert not worst_check(runs, r".*: ratio").ok


def test_a_row_is_made_of_its_run_and_left_out_without_it(tmp_path: Path) -> None:
    name = "errors, lost requests among them"
    checks = [{"name": name, "value": 4, "expected": "0", "ok": False}]
    run = run_of(tmp_path, "soak", checks=checks)
    lines = readme_table({"soak": run}).splitlines()
    assert len(lines) == 5
    assert "| 4 | ≤ 0 | ✗ | [`brisk bench hop`](docs/benchmarks/soak.md) |" in lines[3]
    text = with_table(f"before\n{BEGIN}\nold\n{END}\nafter\n", "\n".join(lines))
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
