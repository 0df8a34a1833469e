"""The client and the benchmarks: no circle of imports, and a table of all commands."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import brisk_bench
import brisk_client

ROOTS = [Path(package.__path__[0]).resolve() for package in (brisk_client, brisk_bench)]


def imports_within(root: Path) -> dict[str, set[str]]:
    """Each module of a package with those of its modules that it imports.

    A function's own imports and those for types count, too.
    """
    files = {
        ".".join(file.relative_to(root.parent).with_suffix("").parts): file
        for file in root.rglob("*.py")
    }
    files = {name.removesuffix(".__init__"): file for name, file in files.items()}
    found: dict[str, set[str]] = {}
    for name, file in files.items():
        imported: set[str] = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    imported.add(inner if inner in files else node.module)
        found[name] = (imported & set(files)) - {name}
    return found


def packages_of(modules: dict[str, set[str]], root: Path) -> dict[str, set[str]]:
    def package(name: str) -> str:
        is_package = root.parent.joinpath(*name.split(".")).is_dir()
        return name if is_package else name.rpartition(".")[0]

    found: dict[str, set[str]] = {}
    for name, imported in modules.items():
        own = package(name)
        found.setdefault(own, set()).update({package(each) for each in imported} - {own})
    return found


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.name)
def test_no_files_and_no_packages_import_each_other_in_a_circle(root: Path) -> None:
    modules = imports_within(root)
    assert len(modules) > 5
    for graph in (modules, packages_of(modules, root)):
        TopologicalSorter(graph).prepare()  # raises CycleError with the circle


def test_the_table_has_every_command_and_nothing_else() -> None:
    """A command's module has a ``main`` that takes the arguments."""
    root = Path(brisk_bench.__path__[0]).resolve()
    commands = {
        ".".join(file.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        for file in root.rglob("*.py")
        if "\ndef main(arguments: Sequence[str]) -> int:" in file.read_text()
    }
    assert commands == set(brisk_bench.COMMANDS.values())
