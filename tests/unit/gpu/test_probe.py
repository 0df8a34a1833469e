"""The probe of a GPU and the bundle that takes it there, without a GPU."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import onnx
import pytest

from brisk_bench.samples.mlp import build_mlp
from support.runtime.fake_driver import fake_driver

TOOLS = Path(__file__).resolve().parents[3] / "tools" / "gpu"

PARTS = {
    *("facts", "workspaces", "asynchronous", "capture", "chunks", "preemption"),
    *("beside", "loading", "cold", "shapes", "searches", "serving"),
}
"""But ``engine``, which is of a device alone."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    models = tmp_path_factory.mktemp("models")
    for name in ("mlp", "resnet18", "resnet50", "encoder"):
        onnx.save(build_mlp(name, seed=3), models / f"{name}.onnx")
    command = [sys.executable, str(TOOLS / "probe.py"), "--dry", fake_driver()]
    command += ["--parts", ",".join(sorted(PARTS))]
    out = models / "rows.jsonl"
    probe = subprocess.run(
        [*command, "--models", str(models), "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert probe.returncode == 0, probe.stdout + probe.stderr
    rows = [json.loads(line) for line in probe.stdout.splitlines()]
    assert rows == [json.loads(line) for line in out.read_text().splitlines()]
    return rows


def of(rows: list[dict[str, object]], part: str) -> list[dict[str, object]]:
    return [row for row in rows if row["part"] == part and "took_s" not in row]


def test_every_part_ends_well_and_answers(rows: list[dict[str, object]]) -> None:
    assert {row["part"] for row in rows} == {"models", *PARTS}
    assert [row for row in rows if "error" in row] == []
    for part in PARTS:
        assert of(rows, part), part


def test_captured_runs_are_compared_with_plain_ones(rows: list[dict[str, object]]) -> None:
    capture = of(rows, "capture")
    assert [row["model"] for row in capture] == ["encoder", "mlp", "resnet18", "resnet50"]
    for row in capture:
        assert row["nodes"] == {"kernel": 7}
        assert row["differs_from_cpu"] == 0


def test_a_part_that_fails_is_told_and_stops_no_other(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOLS / "probe.py"), "--dry", "libnowhere.so"]
    onnx.save(build_mlp("mlp", seed=3), tmp_path / "mlp.onnx")
    for name in ("resnet18", "resnet50", "encoder"):
        (tmp_path / f"{name}.onnx").write_bytes((tmp_path / "mlp.onnx").read_bytes())
    probe = subprocess.run(
        [*command, "--models", str(tmp_path), "--parts", "facts,shapes"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert probe.returncode == 1
    rows = [json.loads(line) for line in probe.stdout.splitlines()]
    assert ["driver is not here" in str(row.get("error")) for row in rows] == [False, True, True]


# The bundle.


@pytest.fixture(scope="module")
def bundle() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("bundle", str(TOOLS / "bundle"))
    spec = importlib.util.spec_from_loader("bundle", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bundle"] = module
    loader.exec_module(module)
    return module


def image(architecture: int, code: bytes) -> bytes:
    header = struct.pack("<HHIQ", 2, 0x101, 64, len(code)).ljust(28, b"\0")
    return (header + struct.pack("<I", architecture)).ljust(64, b"h") + code


def library(*fatbins: bytes) -> bytes:
    """An ELF file with nothing but such a section and names of sections."""
    section = b""
    for images in fatbins:
        section += struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(images)) + images
        section = section.ljust(-(-len(section) // 8) * 8, b"\0")
    names = b"\0.nv_fatbin\0.shstrtab\0"
    begin = 64
    entries = [
        struct.pack("<IIQQQQ", 0, 0, 0, 0, 0, 0),
        struct.pack("<IIQQQQ", 1, 1, 0, 0, begin, len(section)),
        struct.pack("<IIQQQQ", 12, 3, 0, 0, begin + len(section), len(names)),
    ]
    table = begin + len(section) + len(names)
    head = b"\x7fELF".ljust(40, b"\0") + struct.pack("<Q", table)
    head = head.ljust(58, b"\0") + struct.pack("<HHH", 64, len(entries), 2)
    return head + section + names + b"".join(entry.ljust(64, b"\0") for entry in entries)


def test_the_code_of_other_architectures_is_zeroed_in_place(
    bundle: ModuleType, tmp_path: Path
) -> None:
    file = tmp_path / "library.so"
    whole = library(
        image(80, b"eighty!!" * 4) + image(90, b"ninety!!" * 4),
        image(90, b"more"),
        image(75, b"x"),
    )
    file.write_bytes(whole)
    assert bundle.prune(file, 90) == (36, 33)
    pruned = file.read_bytes()
    assert len(pruned) == len(whole)
    assert pruned == whole.replace(b"eighty!!" * 4, bytes(32)).replace(b"hhx", b"hh\0")


def test_kernels_for_language_models_are_zeroed_too(bundle: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "library.so"
    kernels = b"_Z9conv2dPf", b"_Z10fused_MoePf", b"_Z9flash_fwdv", b"a moe that is no name"
    file.write_bytes(library(*(image(90, name) for name in kernels)))
    assert bundle.prune(file, 90) == (len(kernels[0] + kernels[3]), len(kernels[1] + kernels[2]))
    pruned = file.read_bytes()
    assert [name in pruned for name in kernels] == [True, False, False, True]


def test_a_library_without_code_of_that_architecture_keeps_nothing(
    bundle: ModuleType, tmp_path: Path
) -> None:
    file = tmp_path / "library.so"
    file.write_bytes(library(image(80, b"eighty")))
    assert bundle.prune(file, 90) == (0, 6)
