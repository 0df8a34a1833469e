"""What a benchmark's report says of where it comes from."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from brisk_bench.harness.command_line import benchmark_parser, checkout, command_line, deliver
from brisk_bench.harness.report import Check, Report


def git(folder: Path, *arguments: str) -> None:
    author = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    subprocess.run(["git", "-C", str(folder), *author, *arguments], check=True, timeout=30)


def test_a_command_has_neither_its_outputs_nor_places_of_one_machine() -> None:
    given = ["--quick", "--json", "/a/b.json", "--plot=/p", "--fashion", "/usr/share/mnist"]
    assert command_line("exits", given) == "brisk bench exits --quick --fashion mnist"
    assert command_line("x", ["--real=/a/REAL.json"]) == "brisk bench x --real=REAL.json"
    assert command_line("x", ["--scheme", "a b"]) == "brisk bench x --scheme 'a b'"


def test_an_option_is_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark_parser("sample", "A sample.", "less").parse_args(["--qui"])
    assert "unrecognized arguments: --qui" in capsys.readouterr().err


def test_a_checkout_tells_its_commit_and_whether_what_is_measured_differs(tmp_path: Path) -> None:
    file = tmp_path / "client" / "measured.py"
    file.parent.mkdir()
    file.write_text("1\n")
    (tmp_path / "README.md").write_text("one\n")
    assert checkout(file) == (None, None), "no checkout"
    git(tmp_path, "init", "--quiet")
    assert checkout(file) == (None, None), "not tracked"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    commit, dirty = checkout(file)
    assert re.fullmatch("[0-9a-f]{40}", commit or "")
    assert dirty is False
    (tmp_path / "README.md").write_text("two\n")
    assert checkout(file) == (commit, False), "a page is not measured"
    file.write_text("2\n")
    assert checkout(file) == (commit, True)


def test_a_report_is_written_with_command_date_commit_and_state(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    chosen = benchmark_parser("sample", "A sample.", "less").parse_args(
        ["--quick", "--json", str(file)]
    )
    report = Report("sample", {"cores": 2}, {"python": "3"}, [], [Check("c", 1, "1", True)])
    assert deliver(report, chosen, None) == 0
    found = json.loads(file.read_text())
    assert found["command"] == "brisk bench sample --quick"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found["date"])
    source = Path(benchmark_parser.__code__.co_filename).resolve()
    assert (found["commit"], found["dirty"]) == checkout(source)
