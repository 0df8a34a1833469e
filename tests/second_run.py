"""What has failed of time alone is run once more; and a run of which nothing passed can fail.

``pytest --second-run``, which ``make test`` asks for, runs each test that failed within ``with
TIMED:`` (``support.waiting``) again when all others have ended, alone, in a process of its own. If
it passes, it is listed under FLAKY with its first failure, and does not fail the run. A failure
anywhere else fails it, and so does one of a test without the mark ``timing``, and a second one.

``pytest --one-must-pass`` is for a command that says nothing if all that it checks was skipped.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest

from support.waiting import is_of_time

MOST = 10
"""So many tests at most are run again: where more fail, it is not by chance."""


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--second-run", action="store_true", help="run again what failed of time")
    parser.addoption("--no-second-run", action="store_false", dest="second_run")
    parser.addoption("--one-must-pass", action="store_true", help="fail where no test has passed")


class SecondRun:
    """A plugin of the process that reports and, with xdist, of those that run tests: these say
    what failed of time, and that one does the rest."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failed_again: dict[str, str] = {}  # by test, what its second run printed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        error = call.excinfo.value if call.excinfo else None
        if report.failed and error is not None and item.get_closest_marker("timing"):
            vars(report)["is_of_time"] = is_of_time(error)  # xdist sends what it does not know
        return report

    @pytest.hookimpl(trylast=True)  # xdist's processes have ended, and fixtures are gone
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or hasattr(self._config, "workerinput"):
            return
        options = self._config.option
        is_whole = not session.shouldfail and not session.shouldstop
        if options.second_run and session.exitstatus == pytest.ExitCode.TESTS_FAILED and is_whole:
            self._excuse(terminal.stats)
            if not terminal.stats.keys() & {"failed", "error"}:
                session.exitstatus = pytest.ExitCode.OK
        is_well = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if options.one_must_pass and is_well and not terminal.stats.get("passed"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _excuse(self, stats: dict[str, list[Any]]) -> None:
        """Move reports of what passes now from the failed to the flaky."""
        failures = [*stats.get("failed", ()), *stats.get("error", ())]
        others = {each.nodeid for each in failures if not getattr(each, "is_of_time", False)}
        names = sorted({each.nodeid for each in failures} - others)
        passed = {name for name in names if len(names) <= MOST and self._passes(name)}
        for kind in ("failed", "error"):
            reports = stats.pop(kind, [])
            for report in reports:
                stats.setdefault("flaky" if report.nodeid in passed else kind, []).append(report)

    def _passes(self, name: str) -> bool:
        command = [sys.executable, "-m", "pytest", "--no-second-run", "--one-must-pass", name]
        if self._config.pluginmanager.hasplugin("xdist"):
            command.append("-n0")
        if self._config.inipath:
            command.append(f"--config-file={self._config.inipath}")
        done = subprocess.run(
            command, cwd=self._config.rootpath, capture_output=True, text=True, check=False
        )
        if done.returncode:
            self._failed_again[name] = done.stdout + done.stderr
        return not done.returncode

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminal = terminalreporter
        for name, printed in self._failed_again.items():
            terminal.section(f"SECOND RUN of {name}, failed")
            terminal.write(printed)
        if flaky := terminal.stats.get("flaky"):
            terminal.section("FLAKY")
            terminal.write_line("Failed of time, and passed alone: a fault to be mended first.")
        for report in flaky or ():
            terminal.section(report.nodeid, "_")
            terminal.write_line(report.longreprtext)
        if self._config.option.one_must_pass and not terminal.stats.get("passed"):
            terminal.section("NOTHING PASSED", red=True)
            reasons = {str(each.longrepr[2]) for each in terminal.stats.get("skipped", ())}
            for reason in sorted(reasons):
                terminal.write_line(reason)
