"""Commands that the pages name, the reference, and a release, against the code."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import brisk
from brisk.cli.application import application

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "how-it-works").glob("*.md"),
    ]
)
PASSES_ON = {"serve", "bench", "workload"}
"""Their options are others' as well."""


def told(page: Path) -> list[list[str]]:
    """Words of each command, in backticks or on a line of a block; broken lines are joined."""
    text = page.read_text()
    blocks = re.findall(r"^```(?:\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    inline = re.findall(r"`(brisk [^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("brisk ")]
    return [" ".join(each.split()).split(" ")[1:] for each in (*inline, *lines)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_and_option_that_a_page_names_is_there(page: Path) -> None:
    commands = typer.main.get_command(application)
    for words in told(page):
        command: Any = commands
        rest = list(words)
        while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
            name = rest.pop(0)
            assert name in command.commands, f"{page.name}: brisk {' '.join(words)}"
            command = command.commands[name]
        if command.name in PASSES_ON:
            continue
        options = {"--help"} | {name for each in command.params for name in each.opts}
        given = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert given <= options, f"{page.name}: brisk {' '.join(words)}"


def test_the_reference_is_what_the_docstrings_say() -> None:
    command = [sys.executable, str(ROOT / "tools" / "make-reference"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run tools/make-reference"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of what this one has now, committed."""
    folder = tmp_path_factory.mktemp("release") / "brisk"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "setup.py", "README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder / name)
    for file in (*ROOT.glob("constraints*.txt"), *ROOT.glob("requirements*.txt")):
        shutil.copy(file, folder / file.name)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("triton_backend", "client", "bench", "docker", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    changelog = folder / "CHANGELOG.md"
    section = "## 0.9.0 (unreleased)\n\n- Something new.\n\n"
    changelog.write_text(
        changelog.read_text().replace("# Changelog\n\n", f"# Changelog\n\n{section}")
    )
    git(folder, "init", "--quiet")
    git(folder, "config", "user.name", "Somebody")
    git(folder, "config", "user.email", "somebody@example.invalid")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "All")
    return folder


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def release(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "tools" / "release"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_a_release_is_refused_before_anything_changes(checkout: Path) -> None:
    before = git(checkout, "rev-parse", "HEAD")
    for version, said in (("0.9", "no version"), ("0.8.0", "has no section '## 0.8.0 (unrel")):
        done = release(checkout, version, "--no-checks", "--no-image")
        assert done.returncode == 1
        assert said in done.stderr
    (checkout / "new").touch()
    done = release(checkout, "0.9.0", "--no-checks", "--no-image")
    (checkout / "new").unlink()
    assert done.returncode == 1
    assert "the tree has changes" in done.stderr
    assert git(checkout, "rev-parse", "HEAD") == before
    assert git(checkout, "status", "--porcelain") == git(checkout, "tag") == ""


def test_a_release_is_built_of_its_commit_tried_told_and_tagged(
    checkout: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = release(checkout, "0.9.0", "--no-checks", "--no-image", "--out", str(out))
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in out.iterdir())
    assert names[:2] == ["SHA256SUMS", names[1]]
    (wheel,) = out.glob("brisk_triton-0.9.0-py3-none-manylinux*.whl")
    (sdist,) = out.glob("brisk_triton-0.9.0.tar.gz")
    (client,) = out.glob("brisk_client-0.9.0-py3-none-any.whl")
    statement = json.loads((out / "provenance.json").read_text())
    assert {each["name"]: each["digest"]["sha256"] for each in statement["subject"]} == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (wheel, sdist, client)
    }
    definition = statement["predicate"]["buildDefinition"]
    assert definition["internalParameters"]["checks"] == [], "none ran, and it says so"
    commit = git(checkout, "rev-parse", "v0.9.0^{commit}")
    assert definition["resolvedDependencies"][0]["digest"] == {"gitCommit": commit}
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    assert subprocess.run(check, cwd=out, check=False).returncode == 0
    assert git(checkout, "status", "--porcelain") == ""
    for file, line in (
        ("triton_backend/brisk/__init__.py", '__version__ = "0.9.0"'),
        ("client/brisk_client/__init__.py", '__version__ = "0.9.0"'),
        ("docker/helm/Chart.yaml", 'appVersion: "0.9.0"'),
    ):
        assert line in git(checkout, "show", f"HEAD:{file}")
    assert re.search(r"^## 0\.9\.0 \(\d{4}-", git(checkout, "show", "HEAD:CHANGELOG.md"), re.M)
    again = release(checkout, "0.9.0", "--no-checks", "--no-image")
    assert "is not above 0.9.0" in again.stderr
    assert brisk.__version__ != "0.9.0"
