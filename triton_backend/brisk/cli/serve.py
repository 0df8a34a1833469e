"""``brisk serve``: becomes a tritonserver that has Brisk among its backends."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from brisk.errors import InvalidConfigurationError
from brisk.server.backend_directory import assemble, default_directory
from brisk.server.launch import command_line, server_environment
from brisk.server.locate import locate_server
from brisk.server.options import option
from brisk.server.regions import own_prefix, remove_left, with_prefix


def serve(
    context: typer.Context,
    repository: Annotated[
        list[Path] | None,
        typer.Option(help="Model repository; may be given several times.", metavar="DIR"),
    ] = None,
    tritonserver: Annotated[
        Path | None,
        typer.Option(
            help="A Triton to use instead of $TRITONSERVER or the embedded one: the executable "
            "or its installation directory.",
            metavar="PATH",
        ),
    ] = None,
    as_onnxruntime: Annotated[
        bool,
        typer.Option(
            help="Serve entries written for the ONNX Runtime backend with Brisk, too.",
        ),
    ] = True,
) -> None:
    """Serve model repositories with Brisk.

    Every other option is given to **tritonserver** as it is, for example `--http-port 9000`,
    `--model-control-mode explicit`, `--log-verbose 1`. Services listen on the loopback address
    unless `--http-address` and `--grpc-address` say otherwise (metrics follow HTTP's).

    This process becomes the server, so signals and the exit status are the server's own. Shared
    memory that earlier ones left when they were killed is removed first.
    """
    options = [*context.args, *(f"--model-repository={path}" for path in repository or ())]
    if option(options, "model-repository") is None and option(options, "model-store") is None:
        raise InvalidConfigurationError("no model repository; give one with --repository DIR")
    for path in repository or ():
        if not path.is_dir():
            raise InvalidConfigurationError(f"model repository '{path}' is no directory")
    installation = locate_server(tritonserver)
    if option(options, "backend-directory") is None:
        names = ("brisk", "onnxruntime") if as_onnxruntime else ("brisk",)
        directory = assemble(default_directory(installation, names), installation, names=names)
        options.append(f"--backend-directory={directory}")
    _tidy()
    command = command_line(installation, with_prefix(options, own_prefix()))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, server_environment(installation))


def _tidy() -> None:
    """Nothing that goes wrong here keeps a server from starting."""
    try:
        removed = remove_left()
    except OSError as error:
        print(f"brisk: what killed servers have left is not removed: {error}", file=sys.stderr)
        return
    if removed:
        size_mib = sum(region.size_bytes for region in removed) / 2**20
        print(
            f"brisk: removed {len(removed)} shared-memory regions ({size_mib:.1f} MiB) of servers "
            "that were killed",
            file=sys.stderr,
        )
