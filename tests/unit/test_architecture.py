"""The import rule printed in ARCHITECTURE.md, read there and checked against the code."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "triton_backend" / "brisk"
CLIENT = ROOT / "client" / "brisk_client"
BENCH = ROOT / "bench" / "brisk_bench"
CODE = (PACKAGE, CLIENT, BENCH)
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
ROOTS = {"brisk_client": CLIENT, "brisk_bench": BENCH}
"""Of the packages beside ``brisk`` that may have rooms."""

_LINE = re.compile(r"(?P<name>[a-z_]+): imports (?P<allowed>[a-z_, ]+)")
_FLOORS = re.compile(r"(?P<package>[a-z_.]+): (?P<floors>[a-z_]+(?:(?:, | \| )[a-z_]+)+)")
THIN = (
    *("stub", "pipelines", "protocol", "telemetry", "paths", "errors"),
    *("ownership", "tuning", "ort_format", "os_priority", "posix", "scheduling", "settings"),
)
"""What runs inside Triton's stub, on whatever Python Triton has."""


def read_block(name: str) -> list[str]:
    """The lines of a block of ARCHITECTURE.md."""
    pattern = rf"^```{name}\n(.*?)^```"
    block = re.search(pattern, ARCHITECTURE.read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None, f"ARCHITECTURE.md has no ```{name} block"
    return block[1].splitlines()


def read_layers() -> dict[str, list[str]]:
    """The ``layers`` block: package name to the names it may import, from top to bottom."""
    layers = {}
    for line in read_block("layers"):
        match = _LINE.fullmatch(line.strip())
        assert match is not None, f"not of the form 'name: imports a, b': {line!r}"
        names = [name.strip() for name in match["allowed"].split(",")]
        layers[match["name"]] = [] if names == ["nothing"] else names
    return layers


LAYERS = read_layers()


def read_rooms() -> dict[str, list[list[str]]]:
    """The ``rooms`` block: a package's sub-packages and modules, floor by floor, highest first."""
    rooms = {}
    for line in read_block("rooms"):
        match = _FLOORS.fullmatch(line.strip())
        assert match is not None, f"not of the form 'package: a | b, c | d': {line!r}"
        rooms[match["package"]] = [floor.split(", ") for floor in match["floors"].split(" | ")]
    return rooms


ROOMS = read_rooms()


def files_of(layer: str) -> list[Path]:
    single = PACKAGE / f"{layer}.py"
    return [single] if single.exists() else sorted((PACKAGE / layer).rglob("*.py"))


@functools.cache
def imports_in(file: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """At any depth of its code. Files are read once: most tests here ask for all of them."""
    nodes = ast.walk(ast.parse(file.read_text(), str(file)))
    return tuple(node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)))


def imported_modules(file: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every module that ``file`` imports, at any depth of its code."""
    for node in imports_in(file):
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


def rooms_of(package: str) -> dict[str, list[Path]]:
    """The files of each sub-package and of each module of ``package``."""
    folder = ROOTS.get(package) or PACKAGE.joinpath(*package.split("."))
    modules = {path.stem: [path] for path in folder.glob("*.py") if path.stem != "__init__"}
    packages = {path.name: sorted(path.rglob("*.py")) for path in folder.iterdir()}
    return modules | {name: files for name, files in packages.items() if files}


def imported_rooms(package: str) -> dict[str, set[str]]:
    """Of each room of ``package`` the others that it imports, for their types alone, too."""
    prefix = f"{package}." if package in ROOTS else f"brisk.{package}."
    rooms = rooms_of(package)
    return {
        room: {
            name.removeprefix(prefix).split(".")[0]
            for file in files
            for name in imported_names(file)
            if name.startswith(prefix)
        }
        & rooms.keys() - {room}
        for room, files in rooms.items()
    }


def imported_names(file: Path) -> Iterator[str]:
    """Every module that ``file`` imports, and every name that it takes from one."""
    for node in imports_in(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_stands_on_a_floor(package: str) -> None:
    named = [room for floor in ROOMS[package] for room in floor]
    assert sorted(named) == sorted(rooms_of(package))


@pytest.mark.parametrize("package", ROOMS)
def test_a_room_imports_only_lower_floors(package: str) -> None:
    floor_of = {room: number for number, floor in enumerate(ROOMS[package]) for room in floor}
    wrong = [
        f"{package}.{room} imports {other}, which is not below it"
        for room, others in imported_rooms(package).items()
        for other in sorted(others)
        if floor_of[other] <= floor_of[room]
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ROOMS)
def test_no_room_stands_higher_than_it_must(package: str) -> None:
    """A floor above what a room imports would be a permission that nobody needs."""
    floors = ROOMS[package]
    imported = imported_rooms(package)
    wrong = [
        f"{package}.{room} imports nothing of the floor below it: {', '.join(below)}"
        for floor, below in itertools.pairwise(floors)
        for room in floor
        if imported[room].isdisjoint(below)
    ]
    assert not wrong, "\n".join(wrong)


def read_first(file: Path, modules: Collection[str]) -> Iterator[str]:
    """Those of ``modules`` that ``file`` imports; a package only where a name of it is taken."""
    for node in imports_in(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and (package := node.module or "") in modules:
            names = (f"{package}.{alias.name}" for alias in node.names)
            yield from (name if name in modules else package for name in names)


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Modules that import each other, in groups: Tarjan's strongly connected components."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for other in imports[module]:
            if other not in order:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], order[other])
        if lowest[module] == order[module]:
            start = stack.index(module)
            found.append(set(stack[start:]))
            del stack[start:]

    for module in imports:
        if module not in order:
            visit(module)
    return [circle for circle in found if len(circle) > 1]


def test_a_circle_is_found_and_who_only_looks_on_is_not_in_it() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "e"}, "e": set()}
    assert circles(imports) == [{"a", "b", "c"}]


def test_no_files_import_each_other_in_a_circle() -> None:
    """A file can be read once all that it imports has been."""
    files = {
        ".".join(file.relative_to(root.parent).with_suffix("").parts): file
        for root in CODE
        for file in root.rglob("*.py")
    }
    modules = {name.removesuffix(".__init__"): file for name, file in files.items()}
    imports = {
        name: {module for module in read_first(file, modules) if module != name}
        for name, file in modules.items()
    }
    assert circles(imports) == []


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
        for name in imported_names(file):
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
