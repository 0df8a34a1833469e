"""The table of the ``brisk`` command's subcommands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

import brisk
from brisk.cli.commands import (
    cache,
    caches,
    demo,
    deploy,
    hosts,
    look,
    measure,
    size,
    status,
    trace,
)

application = typer.Typer(
    name="brisk",
    help="Brisk, a backend for Triton Inference Server: serve, install, look inside, measure.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

_SERVE, _LOOK, _MEASURE, _LEARN = "Serve", "Look", "Measure", "Learn"
"""The panels of `brisk --help`, in the order in which they are shown."""


def serve(context: typer.Context) -> None:
    """Serve model repositories with Brisk."""
    from brisk.cli.commands.serve import serve as become_a_server

    become_a_server(context.args)


def _add(panel: str, function: Callable[..., None], example: str, **settings: Any) -> None:
    """Add a command to ``panel``, with an example under its help."""
    example = f"Example: `{example}`"
    application.command(rich_help_panel=panel, epilog=example, **settings)(function)


_add(_SERVE, serve, "brisk serve --repository models", context_settings=measure.CONTEXT)
_add(_SERVE, deploy.install, "brisk install --backend-directory /opt/tritonserver/backends")
_add(_SERVE, deploy.config, "brisk config models/detector")
_add(_SERVE, deploy.prepare, "brisk prepare models/detector")
_add(_SERVE, hosts.publish, "brisk publish models/detector https://models.example/detector")
_add(_SERVE, demo.demo, "brisk demo --once")
_add(_LOOK, status.status, "brisk status --interval 5")
_add(_LOOK, look.explain, "brisk explain models/detector")
_add(_LOOK, look.check, "brisk check models --json")
_add(_LOOK, look.doctor, "brisk doctor --repository models")
_add(_LOOK, trace.trace, "brisk trace detector --url 127.0.0.1:8001")
_add(_MEASURE, size.size, "brisk size models")
_add(_MEASURE, measure.bench, "brisk bench warm --quick", context_settings=measure.CONTEXT)
_add(_MEASURE, measure.workload, "brisk workload mix.json --url 127.0.0.1:8001")
application.add_typer(
    cache.cache,
    rich_help_panel=_SERVE,
    epilog="Example: `brisk cache clear --unused-days 30`",
)
application.add_typer(
    hosts.hosts,
    rich_help_panel=_SERVE,
    epilog="Example: `brisk hosts init keys 10.0.0.2 10.0.0.3`",
)
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
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass
