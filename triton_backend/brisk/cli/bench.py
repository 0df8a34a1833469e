"""``brisk bench``: dispatches to the modules of ``brisk_client.benchmarks``.

A benchmark is a module there with ``run(arguments: Sequence[str]) -> None``; it reads its own
options, so that ``--quick``, ``--json FILE``, ``--plot DIR`` and ``--help`` can mean what each
needs.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from brisk.errors import InvalidConfigurationError

PACKAGE = "brisk_client.benchmarks"


def benchmark_names() -> list[str]:
    """The modules of ``brisk_client.benchmarks`` that define ``run``; imports none of them."""
    if find_spec("brisk_client") is None or (package := find_spec(PACKAGE)) is None:
        return []
    files = (
        file
        for folder in package.submodule_search_locations or ()
        for file in Path(folder).glob("*.py")
    )
    return sorted(file.stem for file in files if "\ndef run(" in file.read_text())


def bench(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(help="Which benchmark; none lists them.", show_default=False),
    ] = "",
) -> None:
    """Run a benchmark: `brisk bench NAME [its options]`.

    `brisk bench` lists the names; `brisk bench NAME -- --help` lists a benchmark's own options,
    usually `--quick`, `--json FILE` and `--plot DIR`.
    """
    names = benchmark_names()
    if not name:
        print("\n".join(names))
        return
    if name not in names:
        raise InvalidConfigurationError(
            f"there is no benchmark '{name}'; there are: {', '.join(names) or 'none'}"
        )
    importlib.import_module(f"{PACKAGE}.{name}").run(context.args)
