"""The table of subcommands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

import brisk
from brisk.cli import bench, config, demo, doctor, install, prepare, serve, workload
from brisk.cli.caches import command as caches
from brisk.cli.explain import command as explain
from brisk.cli.status import command as status
from brisk.cli.trace import command as trace

application = typer.Typer(
    name="brisk",
    help="Brisk, a backend for Triton Inference Server: serve, install, look inside, measure.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}

_SERVE, _LOOK, _MEASURE, _LEARN = "Serve", "Look", "Measure", "Learn"
"""The panels of `brisk --help`, in the order in which they are shown."""


def _add(panel: str, function: Callable[..., None], example: str, **settings: Any) -> None:
    """A command in ``panel``, with an example under its help."""
    example = f"Example: `{example}`"
    application.command(rich_help_panel=panel, epilog=example, **settings)(function)


_add(_SERVE, serve.serve, "brisk serve --repository models", context_settings=_PASS_THROUGH)
_add(_SERVE, install.install, "brisk install --backend-directory /opt/tritonserver/backends")
_add(_SERVE, config.config, "brisk config models/detector")
_add(_SERVE, prepare.prepare, "brisk prepare models/detector")
_add(_SERVE, demo.demo, "brisk demo --once")
_add(_LOOK, status.status, "brisk status --interval 5")
_add(_LOOK, explain.explain, "brisk explain models/detector")
_add(_LOOK, doctor.doctor, "brisk doctor --repository models")
_add(_LOOK, trace.trace, "brisk trace detector --url 127.0.0.1:8001")
_add(_MEASURE, bench.bench, "brisk bench warm --quick", context_settings=bench.CONTEXT)
_add(_MEASURE, workload.workload, "brisk workload mix.json --url 127.0.0.1:8001")
application.add_typer(
    caches.caches,
    rich_help_panel=_LEARN,
    epilog="Example: `brisk caches train models/detector --data inputs.npz`",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(brisk.__version__)
        raise typer.Exit


@application.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and end."
        ),
    ] = False,
) -> None:
    pass
