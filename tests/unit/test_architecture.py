"""The import rule printed in ARCHITECTURE.md, read there and checked against the code."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "triton_backend" / "brisk"
CLIENT = ROOT / "client" / "brisk_client"
BENCH = ROOT / "bench" / "brisk_bench"
CODE = (PACKAGE, CLIENT, BENCH)
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
_LINE = re.compile(r"(?P<name>[a-z_]+): imports (?P<allowed>[a-z_, ]+)")

THIN = (
    *("stub", "pipelines", "protocol", "telemetry", "paths", "errors"),
    *("ownership", "tuning", "ort_format", "os_priority", "settings"),
)
"""What runs inside Triton's stub, on whatever Python Triton has."""


def read_layers() -> dict[str, list[str]]:
    """The ``layers`` block: package name to the names it may import, from top to bottom."""
    block = re.search(r"^```layers\n(.*?)^```", ARCHITECTURE.read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None, "ARCHITECTURE.md has no ```layers block"
    layers = {}
    for line in block[1].splitlines():
        match = _LINE.fullmatch(line.strip())
        assert match is not None, f"not of the form 'name: imports a, b': {line!r}"
        names = [name.strip() for name in match["allowed"].split(",")]
        layers[match["name"]] = [] if names == ["nothing"] else names
    return layers


LAYERS = read_layers()


def files_of(layer: str) -> list[Path]:
    single = PACKAGE / f"{layer}.py"
    return [single] if single.exists() else sorted((PACKAGE / layer).rglob("*.py"))


def imported_modules(file: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every module that ``file`` imports, at any depth of its code."""
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative imports hide the direction"
            assert node.module is not None
            if node.module == "brisk":
                yield from ((node.lineno, f"brisk.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module


def test_every_package_has_its_line() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if any(path.glob("*.py"))}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert packages | modules == set(LAYERS)


def test_the_arrows_point_down() -> None:
    order = list(LAYERS)
    for position, (name, allowed) in enumerate(LAYERS.items()):
        for target in allowed:
            assert order.index(target) > position, f"{name} imports {target}, which is above it"


@pytest.mark.parametrize("layer", LAYERS)
def test_a_package_imports_only_what_its_line_lists(layer: str) -> None:
    allowed = {layer, "__version__", *LAYERS[layer]}
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {module}"
        for file in files_of(layer)
        for line, module in imported_modules(file)
        if module.startswith("brisk.") and module.split(".")[1] not in allowed
    ]
    assert not wrong, f"{layer} may import {', '.join(LAYERS[layer]) or 'nothing'}:\n" + "\n".join(
        wrong
    )


@pytest.mark.parametrize("layer", LAYERS)
def test_a_line_lists_only_what_its_package_imports(layer: str) -> None:
    used = {
        module.split(".")[1]
        for file in files_of(layer)
        for _, module in imported_modules(file)
        if module.startswith("brisk.")
    }
    assert set(LAYERS[layer]) <= used


@pytest.mark.parametrize("layer", THIN)
def test_what_runs_in_the_stub_needs_the_standard_library_and_numpy_alone(layer: str) -> None:
    allowed = {*sys.stdlib_module_names, "brisk", "numpy"}
    if layer == "stub":
        allowed.add("triton_python_backend_utils")
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {module}"
        for file in files_of(layer)
        for line, module in imported_modules(file)
        if module.split(".")[0] not in allowed
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("layer", "foreign"),
    [
        ("graph", "torch"),
        ("triton", "torch"),
        ("scheduling", "torch"),
        ("scheduling", "numpy"),
        ("pipelines", "torch"),
        ("pipelines", "numpy"),
        ("protocol", "triton_python_backend_utils"),
    ],
)
def test_a_package_does_without(layer: str, foreign: str) -> None:
    for file in files_of(layer):
        for line, module in imported_modules(file):
            assert module.split(".")[0] != foreign, f"{file.relative_to(ROOT)}:{line}"


def test_the_client_needs_numpy_and_tritonclient_alone() -> None:
    """``grpc`` comes with ``tritonclient``; a project that asks a server needs nothing else."""
    allowed = {*sys.stdlib_module_names, "brisk_client", "numpy", "tritonclient", "grpc"}
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {module}"
        for file in sorted(CLIENT.rglob("*.py"))
        for line, module in imported_modules(file)
        if module.split(".")[0] not in allowed
    ]
    assert wrong == []


def test_benchmarks_import_no_command_and_only_commands_import_them_or_the_client() -> None:
    """``cli`` runs what ``brisk_bench`` has, which is above everything else."""
    for file in sorted(BENCH.rglob("*.py")):
        for line, module in imported_modules(file):
            assert not module.startswith("brisk.cli"), f"{file.relative_to(ROOT)}:{line}"
    for layer in set(LAYERS) - {"cli"}:
        for file in files_of(layer):
            for line, module in imported_modules(file):
                name = module.split(".")[0]
                assert name not in ("brisk_client", "brisk_bench"), f"{file.name}:{line}"


def test_the_package_itself_imports_nothing() -> None:
    """It is loaded before any of its parts, in the stub too."""
    modules = [module for _, module in imported_modules(PACKAGE / "__init__.py")]
    assert set(modules) <= {"__future__"}


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by these, whatever their folders."""
    names = [file.name for file in (ROOT / "tests").rglob("test_*.py")]
    assert [name for name in names if names.count(name) > 1] == []


def test_no_test_imports_a_test() -> None:
    """What several of them need is in ``tests/support``."""
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {module}"
        for file in (ROOT / "tests").rglob("*.py")
        for line, module in imported_modules(file)
        if module.split(".")[-1].startswith("test_")
    ]
    assert wrong == []


def test_no_two_classes_have_one_name() -> None:
    """A reader who has met one takes the other for it."""
    found: dict[str, list[str]] = {}
    for path in (path for root in CODE for path in root.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(path.name)
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def test_a_folder_has_at_most_twelve_modules() -> None:
    roots = (*CODE, ROOT / "tests")
    folders = {path.parent for root in roots for path in root.rglob("*.py")}
    counts = {
        str(folder.relative_to(ROOT)): len([*folder.glob("*.py")])
        - (folder / "__init__.py").exists()
        for folder in folders
    }
    assert {folder: count for folder, count in counts.items() if count > 12} == {}


def test_a_short_module_is_imported_by_several_or_run() -> None:
    """Else it is a paragraph of the one that imports it."""
    files = [file for root in CODE for file in root.rglob("*.py")]
    importers: dict[str, set[Path]] = {}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                continue
            for name in names:
                importers.setdefault(name, set()).add(file)
    short = [
        file
        for file in files
        if file.name != "__init__.py" and len(file.read_text().splitlines()) < 60
    ]
    names_of = {
        file: ".".join(file.relative_to(root.parent).with_suffix("").parts)
        for root in CODE
        for file in short
        if file.is_relative_to(root)
    }
    assert len(names_of) > 10
    assert [name for name in names_of.values() if len(importers.get(name, ())) == 1] == []


def test_a_file_has_at_most_four_hundred_lines() -> None:
    roots = (*CODE, ROOT / "tests")
    files = [file for root in roots for file in root.rglob("*.py")]
    long = {str(file): len(file.read_text().splitlines()) for file in files}
    assert {name: lines for name, lines in long.items() if lines > 400} == {}


def test_every_module_that_it_names_exists() -> None:
    names = re.findall(r"`(brisk(?:_client|_bench)?(?:\.[a-z_]+)+)`", ARCHITECTURE.read_text())
    missing = []
    for name in names:
        root = next(each.parent for each in CODE if each.name == name.split(".")[0])
        path = root.joinpath(*name.split("."))
        if not (path.is_dir() or path.with_suffix(".py").exists()):
            missing.append(name)
    assert len(names) > 20
    assert missing == []
