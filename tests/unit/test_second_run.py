"""What is run once more, and what that excuses; pytest runs small folders of tests."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

_CONFTEST = """
import pytest
from second_run import SecondRun, add_options

def pytest_addoption(parser):
    add_options(parser)

def pytest_configure(config):
    config.pluginmanager.register(SecondRun(config))
"""

_HEAD = """
import os, pytest
from pathlib import Path
from support.waiting import TIMED

def times(name):
    "How often it has been called."
    with open(name, "a") as file:
        file.write(".")
    return os.path.getsize(name)
"""

SLOW_ONCE = """
@pytest.mark.timing
def test_slow_once():
    took_s = 2 / times("slow")
    with TIMED:
        assert took_s < 1.5, "it took long"
"""
SLOW = SLOW_ONCE.replace("2 / times", "2 * times").replace("slow_once", "slow")
UNMARKED = SLOW_ONCE.replace("@pytest.mark.timing\n", "")
LOST_ONCE = """
@pytest.mark.timing
def test_lost_once():
    assert times("lost") > 1, "a request is lost"
"""
SLOW_AND_LOST = """
@pytest.fixture
def answers():
    yield
    assert times("answers") > 1, "a request is lost"

@pytest.mark.timing
def test_slow_and_lost(answers):
    with TIMED:
        assert times("slow") > 1
"""
SKIPPED_AGAIN = """
@pytest.mark.timing
def test_skipped_again():
    if times("skipped") > 1:
        pytest.skip("there is no server")
    with TIMED:
        assert 2 < 1
"""
BROKEN_WITHIN = """
@pytest.mark.timing
def test_broken_within():
    with TIMED:
        assert times("broken") > {}["no such key"]
"""
SLOW_FIXTURE = """
@pytest.fixture(scope="module")
def server():
    with TIMED:
        assert times("server") > 1, "the start took long"

@pytest.mark.timing
@pytest.mark.parametrize("each", ["a b", "[c]"])
def test_served(server, each):
    pass
"""
WELL = """
@pytest.mark.parametrize("number", range(4))
def test_well(number):
    pass
"""

PROCESSES = pytest.mark.parametrize("processes", ["-n0", "-n2"])


def run(folder: Path, *options: str, tests: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = timing\naddopts = -ra\n")
    (folder / "conftest.py").write_text(_CONFTEST)
    (folder / "test_it.py").write_text(_HEAD + tests)
    (folder / "test_well.py").write_text(_HEAD + WELL)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTEST_ADDOPTS"] = "-p no:hypothesispytest -p no:timeout"  # a second for each
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def runs_in(folder: Path, *names: str) -> dict[str, int]:
    return {name: (folder / name).stat().st_size for name in names}


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout.splitlines()[-1]


@PROCESSES
def test_what_was_slow_once_is_flaky_and_fails_nothing(processes: str, tmp_path: Path) -> None:
    done = run(tmp_path, "--second-run", processes, tests=SLOW_ONCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed, 1 flaky in" in last_line(done)
    flaky = done.stdout.partition("= FLAKY =")[2]
    assert "test_it.py::test_slow_once" in flaky
    assert "AssertionError: it took long" in flaky
    assert "FAILED" not in flaky


@pytest.mark.parametrize(
    ("tests", "runs", "last"),
    [
        (SLOW, {"slow": 2}, "1 failed, 4 passed in"),
        (UNMARKED, {"slow": 1}, "1 failed, 4 passed in"),
        (LOST_ONCE, {"lost": 1}, "1 failed, 4 passed in"),
        (SLOW_AND_LOST, {"slow": 1, "answers": 1}, "1 failed, 4 passed, 1 error in"),
        (SKIPPED_AGAIN, {"skipped": 2}, "1 failed, 4 passed in"),
        (BROKEN_WITHIN, {"broken": 1}, "1 failed, 4 passed in"),
    ],
    ids=["slow", "unmarked", "lost", "slow and lost", "skipped", "broken within"],
)
def test_all_else_fails_the_run(
    tests: str, runs: dict[str, int], last: str, tmp_path: Path
) -> None:
    done = run(tmp_path, "--second-run", tests=tests)
    assert done.returncode == 1, done.stdout + done.stderr
    assert last in last_line(done)
    assert runs_in(tmp_path, *runs) == runs


@PROCESSES
def test_one_excused_failure_excuses_no_other(processes: str, tmp_path: Path) -> None:
    done = run(tmp_path, "--second-run", processes, tests=SLOW_ONCE + LOST_ONCE)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 4 passed, 1 flaky in" in last_line(done)
    assert runs_in(tmp_path, "slow", "lost") == {"slow": 2, "lost": 1}


def test_what_fails_twice_is_told_twice(tmp_path: Path) -> None:
    done = run(tmp_path, "--second-run", tests=SLOW)
    again = done.stdout.partition("SECOND RUN of test_it.py::test_slow, failed")[2]
    assert "AssertionError: it took long" in again
    assert "FLAKY" not in done.stdout


def test_a_fixture_that_was_slow_is_made_anew_for_each_of_its_tests(tmp_path: Path) -> None:
    done = run(tmp_path, "--second-run", tests=SLOW_FIXTURE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed, 2 flaky in" in last_line(done)
    assert (tmp_path / "server").stat().st_size == 3


def test_nothing_is_run_again_unless_asked_for(tmp_path: Path) -> None:
    done = run(tmp_path, tests=SLOW_ONCE)
    assert done.returncode == 1
    assert (tmp_path / "slow").stat().st_size == 1


def test_nothing_is_excused_where_the_run_was_cut_short(tmp_path: Path) -> None:
    done = run(tmp_path, "--second-run", "-x", tests=SLOW_ONCE)
    assert done.returncode == 1
    assert (tmp_path / "slow").stat().st_size == 1


def test_nothing_is_excused_where_many_fail(tmp_path: Path) -> None:
    many = SLOW_ONCE.replace("slow_once():", "slow(number):").replace('"slow"', 'f"slow{number}"')
    many = f'\n@pytest.mark.parametrize("number", range(11)){many}'
    done = run(tmp_path, "--second-run", tests=many)
    assert done.returncode == 1
    assert "11 failed, 4 passed in" in last_line(done)


@PROCESSES
def test_a_run_whose_tests_are_all_skipped_fails_where_one_must_pass(
    processes: str, tmp_path: Path
) -> None:
    skipped = '\n\ndef test_skipped():\n    pytest.skip("install a builder")\n'
    done = run(tmp_path, "--one-must-pass", processes, "test_it.py", tests=skipped)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 skipped in" in last_line(done)
    assert "install a builder" in done.stdout.partition("= NOTHING PASSED =")[2]
    assert run(tmp_path, processes, "test_it.py", tests=skipped).returncode == 0
    assert run(tmp_path, "--one-must-pass", processes, tests=skipped).returncode == 0


def timed_blocks() -> Iterator[tuple[str, ast.stmt]]:
    """Each statement within ``with TIMED:``, by where it stands."""
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.With) and "TIMED" in map(
                ast.unparse, (item.context_expr for item in node.items)
            ):
                for statement in node.body:
                    yield f"{path.relative_to(TESTS)}:{statement.lineno}", statement


def test_what_is_excused_compares_by_order_or_waits() -> None:
    """Answers and numbers of requests are equal or not: such a comparison is not excused."""
    found = dict(timed_blocks())
    assert len(found) > 20
    for where, statement in found.items():
        if isinstance(statement, ast.Assert):
            compared = statement.test
            orders = isinstance(compared, ast.Compare) and all(
                isinstance(each, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for each in compared.ops
            )
            assert orders, f"{where}: only <, <=, >, >= in an assertion of time"
        else:
            assert isinstance(statement, ast.Expr), where
            assert ast.unparse(statement).startswith("wait_until("), where


def test_an_image_test_without_a_builder_fails_and_names_what_to_install(tmp_path: Path) -> None:
    planned = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "image-test"],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    command = planned.stdout.splitlines()[-1]
    assert "pytest" in command
    done = subprocess.run(
        ["/bin/sh", "-c", f"{command} -p no:cacheprovider"],
        cwd=TESTS.parent,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    told = done.stdout.partition("= NOTHING PASSED =")[2]
    for package in ("docker.io", "buildah debootstrap"):
        assert f"apt install {package}" in told
