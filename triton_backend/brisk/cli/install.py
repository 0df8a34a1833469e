"""``brisk install``: puts the backend into an existing Triton deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def install(
    backend_directory: Annotated[
        Path,
        typer.Option(
            help="The deployment's backend directory, for example /opt/tritonserver/backends.",
            metavar="DIR",
        ),
    ],
    name: Annotated[
        str,
        typer.Option(
            "--as",
            help="The backend's name there. As **onnxruntime** it serves existing ONNX Runtime "
            "entries, with no change to them or to the clients.",
            metavar="NAME",
        ),
    ] = "brisk",
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy the files instead of linking to this Brisk.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Move another backend of that name aside (NAME.replaced-by-brisk)."
        ),
    ] = False,
) -> None:
    """Link or copy Brisk into a Triton backend directory."""
    from brisk.triton import backend_directory as backends

    target = backends.install(backend_directory, name=name, copy=copy, force=force)
    print(f"installed as {target}")
    print(f'models choose it with `backend: "{name}"`')
    print(
        "Triton's Python must have numpy; the runtime runs under $BRISK_PYTHON, "
        "which needs onnxruntime and onnx"
    )
    print(
        "a load takes a second less where no entry needs Triton's auto-completion: write complete "
        "configurations with `brisk config MODEL_DIR`, start the server with "
        "--disable-auto-complete-config (`brisk serve` does both, and changes no entry)"
    )
