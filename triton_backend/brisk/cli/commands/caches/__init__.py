"""``brisk caches``: trains a model's learned caches, shows and exports them."""

from __future__ import annotations

import typer

from brisk.cli.commands.caches.show import export, show
from brisk.cli.commands.caches.train import train

caches = typer.Typer(
    name="caches",
    help="Learned caches, which answer easy inputs early: train them, show them.",
    no_args_is_help=True,
)
for command in (train, show, export):
    caches.command()(command)
