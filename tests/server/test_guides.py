"""What docs/getting-started.md and docs/clients.md tell a newcomer to type, typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from brisk.triton.options import option
from support.runtime.runtime_processes import hurrying_best_effort
from support.server.serve_command import serving

pytestmark = [pytest.mark.timing, pytest.mark.beside]

LOOKS = (
    "check my_repository",
    "status --once",
    "status --once --json",
    "trace classifier --url 127.0.0.1:8001",
    "explain my_repository/classifier",
    "config my_repository/classifier --stdout",
    "cache list",
)
"""Commands of the pages for who runs a server; doctor's status depends on the machine."""

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(
        r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE
    )


def run(block: str, folder: Path, ports: dict[str, str]) -> str:
    """What it prints, with the server's ports in place of Triton's usual ones."""
    for usual, port in ports.items():
        block = block.replace(f":{usual}", f":{port}")
    ended = subprocess.run(
        [sys.executable, "-c", block], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_newcomer_s_first_steps(tmp_path: Path) -> None:
    make, ask, mistake = blocks("getting-started.md")
    run(make, tmp_path, {})
    with (
        serving(tmp_path, [tmp_path / "my_repository"]) as served,
        hurrying_best_effort(served.runtime),
    ):
        ports = {
            "8000": option(served.options, "http-port"),
            "8001": option(served.options, "grpc-port"),
        }
        assert run(ask, tmp_path, ports) == "(1, 10)\n"
        message = run(mistake, tmp_path, ports)
        assert "image" in message
        assert "784" in message
        examples = blocks("clients.md")
        assert len(examples) == 3
        for example in examples:
            told = run(example, tmp_path, ports).splitlines()
            assert told
            assert set(told) <= {"(1, 10)", "[1, 10]"}
        explained = subprocess.run(
            [sys.executable, "-m", "brisk.cli", "explain", "my_repository/classifier"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert explained.returncode == 0, explained.stderr
        assert "segment" in explained.stdout
        for command in LOOKS:
            words = command.replace("8001", ports["8001"] or "").split()
            ended = subprocess.run(
                [sys.executable, "-m", "brisk.cli", *words],
                cwd=tmp_path,
                env={**os.environ, "BRISK_RUNTIME_DIR": str(served.runtime)},
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert ended.returncode == 0, command + ended.stderr
            assert ended.stdout, command


def test_what_is_typed_above_is_what_the_pages_tell_to_type() -> None:
    told = " ".join((DOCS / "sizing.md").read_text().split())
    told += " ".join((DOCS / "troubleshooting.md").read_text().split())
    for command in LOOKS:
        name = command.replace("my_repository/classifier --stdout", "MODEL_DIR --stdout")
        assert f"`brisk {name}`" in told, command


def test_ports_in_the_guides_are_triton_s_own() -> None:
    """Else the steps above would ask a server that nobody has started."""
    for page in ("getting-started.md", "clients.md"):
        for block in blocks(page):
            assert set(re.findall(r"127\.0\.0\.1:(\d+)", block)) <= {"8000", "8001"}
