"""``brisk demo``: serves the sample models, queries each of them, and shows the answers."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from brisk.triton.launch import TritonServer


def demo(
    repository: Annotated[
        Path, typer.Option(help="The generated sample repository.", metavar="DIR")
    ] = Path("model_repository"),
    build: Annotated[
        Path, typer.Option(help="Folder for the backend directory and the log.", metavar="DIR")
    ] = Path("build"),
    tritonserver: Annotated[
        Path | None,
        typer.Option(help="A Triton to use instead of the embedded one.", metavar="PATH"),
    ] = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Exit after the queries, with status 0 only if every answer is right."
        ),
    ] = False,
) -> None:
    """Serve the sample models and query each of them over HTTP and gRPC.

    The server stays up until Ctrl-C unless `--once` is given. It listens on Triton's usual
    ports of the loopback address where these are free, else on others.
    """
    from rich.console import Console

    from brisk.triton.backend_directory import assemble
    from brisk.triton.launch import TritonServer
    from brisk.triton.locate import locate_server
    from brisk_bench.demo import show_samples

    for number in (signal.SIGINT, signal.SIGTERM):  # a shell may have SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    console = Console(highlight=False)
    installation = locate_server(tritonserver)
    backends = assemble(build.resolve() / "backends", installation)
    server = TritonServer(
        installation,
        repository.resolve(),
        backends,
        log=build.resolve() / "tritonserver.log",
        prefer_default_ports=True,
    )
    started_s = time.monotonic()
    try:
        with console.status("starting tritonserver and loading the sample models …"):
            server.start()
            server.wait_ready()
        console.print(f"tritonserver is ready after {time.monotonic() - started_s:.1f} s")
        http, grpc = server.endpoints.http, server.endpoints.grpc
        assert http is not None
        assert grpc is not None
        all_right = show_samples(console, repository, http_url=http, grpc_url=grpc)
        if not once:
            _stay(console, server)
    except KeyboardInterrupt:
        all_right = not once
    finally:
        with console.status("stopping tritonserver …"):
            server.stop()
    raise typer.Exit(0 if all_right else 1)


def _stay(console: Console, server: TritonServer) -> None:
    """Print the server's addresses, and wait until it ends or Ctrl-C. Raises ServerFailedError if
    it ends."""
    from brisk.triton.launch import ServerFailedError

    console.print(f"HTTP     http://{server.endpoints.http}/v2")
    console.print(f"gRPC     {server.endpoints.grpc}")
    console.print(f"metrics  http://{server.endpoints.metrics}/metrics")
    console.print(f"log      {server.log}")
    console.print("Ctrl-C stops the server")
    while server.returncode is None:
        time.sleep(0.2)
    raise ServerFailedError(
        f"tritonserver ended with status {server.returncode}:\n{server.log_tail()}"
    )
