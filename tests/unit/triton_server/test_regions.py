"""The shared-memory regions that are removed, and those left alone: real files and processes."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brisk.cli.commands import serve
from brisk.doctor.deployment import Severity
from brisk.doctor.machine import left_regions
from brisk.triton import regions as regions_module
from brisk.triton.regions import left, own_prefix, remove_left, with_prefix
from support.deployments import deployment

SIZE = 2**20
PREFIX = "from brisk.triton.regions import own_prefix; print(own_prefix(), flush=True)"


def prefix_of_an_ended_process() -> str:
    child = subprocess.run(
        [sys.executable, "-c", PREFIX], stdout=subprocess.PIPE, text=True, check=True
    )
    return child.stdout.strip()


@contextlib.contextmanager
def living_process(code: str, *arguments: str) -> Iterator[str]:
    """Runs ``code`` until the end of the block; what it printed first."""
    command = [sys.executable, "-c", f"{code}; input()", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate("\n")


def make_region(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(b"\1" * SIZE)
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_regions_of_a_process_that_has_ended_are_removed_and_told(tmp_path: Path) -> None:
    prefix = prefix_of_an_ended_process()
    regions = [make_region(tmp_path, f"{prefix}{end}") for end in ("a", "b")]
    removed = remove_left(tmp_path)
    assert [region.path for region in removed] == regions
    assert sum(region.size_bytes for region in removed) >= 2 * SIZE
    assert names(tmp_path) == set()
    assert remove_left(tmp_path) == []


def test_serve_says_how_much_it_has_removed_and_nothing_where_there_was_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(regions_module, "remove_left", lambda: remove_left(tmp_path))
    serve._tidy()
    assert capsys.readouterr().err == ""
    prefix = prefix_of_an_ended_process()
    for ends, said in (
        ("ab", "2 shared-memory regions (2.0"),
        ("c", "1 shared-memory region (1.0"),
    ):
        for end in ends:
            make_region(tmp_path, f"{prefix}{end}")
        serve._tidy()
        told = f"brisk: removed {said} MiB) of servers that were killed\n"
        assert capsys.readouterr().err == told


def test_regions_of_a_process_that_lives_stay(tmp_path: Path) -> None:
    with living_process(PREFIX) as prefix:
        region = make_region(tmp_path, f"{prefix}a")
        own = make_region(tmp_path, f"{own_prefix()}a")
        assert remove_left(tmp_path) == []
    assert [each.path for each in remove_left(tmp_path)] == [region]
    assert names(tmp_path) == {own.name}


def test_a_number_that_was_given_again_is_another_process(tmp_path: Path) -> None:
    with living_process(PREFIX) as prefix:
        earlier = re.sub(r"_(\d+)_(\d+)_(\d+)_", r"_\g<1>_1_\g<3>_", prefix)
        region = make_region(tmp_path, f"{earlier}a")
        assert [each.path for each in remove_left(tmp_path)] == [region]


def test_what_is_mapped_stays_until_it_is_not(tmp_path: Path) -> None:
    """A stub that outlives its server for a moment."""
    region = make_region(tmp_path, f"{prefix_of_an_ended_process()}a")
    mapping = (
        "import mmap, os, sys; file = os.open(sys.argv[1], os.O_RDWR); "
        "memory = mmap.mmap(file, 4096); os.close(file); print('mapped', flush=True)"
    )
    with living_process(mapping, str(region)) as word:
        assert word == "mapped"
        assert remove_left(tmp_path) == []
        assert left(tmp_path) == []
    assert [each.path for each in remove_left(tmp_path)] == [region]


@pytest.mark.parametrize(
    "name",
    [
        "triton_python_backend_shm_region_2dd394a4",
        "brisk_server_4194304_77aa00bb_2dd394a4",
        "brisk_server_x",
        "psm_2dd394a4",
        "sem.brisk_server_4194304_1_1_",
    ],
)
def test_other_prefixes_are_nobody_s_to_remove(tmp_path: Path, name: str) -> None:
    region = make_region(tmp_path, name)
    assert remove_left(tmp_path) == []
    assert region.exists()


def test_what_another_namespace_s_process_answers_for_stays(tmp_path: Path) -> None:
    """A container with the same /dev/shm: whether its process lives is not seen from here."""
    prefix = re.sub(r"_(\d+)_$", "_1_", prefix_of_an_ended_process())
    region = make_region(tmp_path, f"{prefix}a")
    assert remove_left(tmp_path) == []
    assert [each.path for each in left(tmp_path)] == [region]


def test_only_files_of_this_user_are_removed(tmp_path: Path) -> None:
    prefix = prefix_of_an_ended_process()
    (tmp_path / "precious").write_text("of somebody else")
    (tmp_path / f"{prefix}link").symlink_to(tmp_path / "precious")
    (tmp_path / f"{prefix}folder").mkdir()
    if os.geteuid() == 0:
        os.chown(make_region(tmp_path, f"{prefix}other"), 12345, 12345)
    before = names(tmp_path)
    assert remove_left(tmp_path) == []
    assert names(tmp_path) == before


@pytest.mark.parametrize("said_by", ["stub", "server"])
def test_of_a_process_whose_memory_may_not_be_looked_at_the_command_line_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said_by: str
) -> None:
    prefix = prefix_of_an_ended_process()
    region = make_region(tmp_path, f"{prefix}a")
    read_bytes = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "maps":
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    words = {"stub": region.name, "server": with_prefix([], prefix)[0]}
    with living_process("print('here', flush=True)", words[said_by]):
        assert remove_left(tmp_path) == []
    assert [each.path for each in remove_left(tmp_path)] == [region]


@pytest.mark.parametrize(
    "options",
    [
        ["--backend-config=python,shm-region-prefix-name=mine"],
        ["--backend-config", "python,shm-region-prefix-name=mine"],
    ],
)
def test_a_prefix_that_the_caller_gives_is_kept(options: list[str]) -> None:
    assert with_prefix(options, "ours") == tuple(options)


def test_a_server_s_regions_are_named_after_the_process_it_is() -> None:
    options = with_prefix(["--backend-config=python,other=1"], own_prefix())
    assert options[0] == "--backend-config=python,other=1"
    assert options[1].startswith(
        f"--backend-config=python,shm-region-prefix-name=brisk_server_{os.getpid()}_"
    )


def test_the_doctor_counts_what_nobody_has_mapped_whoever_made_it(tmp_path: Path) -> None:
    (finding,) = left_regions(deployment(tmp_path, shared_memory=tmp_path))
    assert finding.verdict is Severity.GOOD
    expected = [
        make_region(tmp_path, f"triton_{backend}_backend_shm_region_{number}")
        for backend in ("python", "brisk")
        for number in range(2)
    ]
    make_region(tmp_path, "psm_somebody_else_s")
    (finding,) = left_regions(deployment(tmp_path, shared_memory=tmp_path))
    assert finding.verdict is Severity.ADVICE
    assert finding.found.startswith(f"{len(expected)} in {tmp_path}")
    assert "4.0 MiB" in finding.found
    assert "and 1 more" in finding.found
    assert "brisk serve" in finding.change
    missing = left_regions(deployment(tmp_path, shared_memory=tmp_path / "nothing"))
    assert [each.verdict for each in missing] == [Severity.UNKNOWN]
