"""``brisk bench``: dispatches to the modules of ``brisk_client.benchmarks``.

A benchmark is a module or package there with ``run(quick=…) -> brisk_client.report.Report``. One
that has options of its own also has ``main(arguments) -> int``, which reads them and gives the
status.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from brisk.errors import InvalidConfigurationError

PACKAGE = "brisk_client.benchmarks"

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Everything behind the name is the benchmark's own, ``--help`` too."""


def benchmark_names() -> list[str]:
    """The modules and packages of ``brisk_client.benchmarks`` with a ``run``; imports none."""
    if find_spec("brisk_client") is None or (package := find_spec(PACKAGE)) is None:
        return []
    files = {
        file.parent.name if file.name == "__init__.py" else file.stem: file
        for folder in package.submodule_search_locations or ()
        for file in (*Path(folder).glob("*.py"), *Path(folder).glob("*/__init__.py"))
    }
    return sorted(name for name, file in files.items() if "\ndef run(" in file.read_text())


def bench(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(help="Which benchmark; none lists them.", show_default=False),
    ] = "",
) -> None:
    """Run a benchmark: `brisk bench NAME [--quick] [--json FILE] [its options]`.

    `brisk bench` lists the names, `brisk bench NAME --help` a benchmark's own options. The exit
    status is 0 where everything that the benchmark expects holds.
    """
    names = benchmark_names()
    if name in ("", "--help"):
        print("\n".join(names) if not name else context.get_help())
        return
    if name not in names:
        raise InvalidConfigurationError(
            f"there is no benchmark '{name}'; there are: {', '.join(names) or 'none'}"
        )
    module = importlib.import_module(f"{PACKAGE}.{name}")
    if hasattr(module, "main"):
        raise typer.Exit(module.main(context.args))
    raise typer.Exit(_run(name, module, context.args))


def _run(name: str, module: ModuleType, arguments: Sequence[str]) -> int:
    """Run a benchmark that has no options of its own."""
    from brisk_client.report import show, write_json

    parser = argparse.ArgumentParser(prog=f"brisk bench {name}", description=module.__doc__)
    parser.add_argument("--quick", action="store_true", help="measure less, sooner")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    chosen = parser.parse_args(arguments)
    report = module.run(quick=chosen.quick)
    show(report)
    if chosen.json:
        write_json(report, chosen.json)
    return 0 if report.ok else 1
