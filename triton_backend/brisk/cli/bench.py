"""``brisk bench``: dispatches to the modules of ``brisk_client.benchmarks``.

A benchmark is a module or package there with ``run(quick=…) -> brisk_client.report.Report``. One
that has options of its own also has ``main(arguments) -> int``, which reads them and gives the
status.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from brisk.errors import InvalidConfigurationError

PACKAGE = "brisk_client.benchmarks"

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Everything behind the name is the benchmark's own, ``--help`` too."""


def benchmark_names() -> list[str]:
    """The modules and packages of ``brisk_client.benchmarks`` with a ``main``; imports none."""
    if find_spec("brisk_client") is None or (package := find_spec(PACKAGE)) is None:
        return []
    files = {
        file.parent.name if file.name == "__init__.py" else file.stem: file
        for folder in package.submodule_search_locations or ()
        for file in (*Path(folder).glob("*.py"), *Path(folder).glob("*/__init__.py"))
    }
    return sorted(name for name, file in files.items() if "\ndef main(" in file.read_text())


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
    raise typer.Exit(module.main(context.args))
