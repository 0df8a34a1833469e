"""The table of subcommands."""

from __future__ import annotations

from typing import Annotated

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

application.command(context_settings=_PASS_THROUGH)(serve.serve)
application.command()(install.install)
application.command()(config.config)
application.command()(explain.explain)
application.command()(prepare.prepare)
application.command()(status.status)
application.command()(doctor.doctor)
application.command()(trace.trace)
application.command(context_settings=bench.CONTEXT)(bench.bench)
application.command()(workload.workload)
application.command()(demo.demo)
application.add_typer(caches.caches)


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
