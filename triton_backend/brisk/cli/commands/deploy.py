"""``brisk install``, ``config`` and ``prepare``: the steps ahead of a deployment."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from brisk.cli.commands.models import ModelArgument, for_each_entry
from brisk.cli.views.model_files import version_files
from brisk.errors import InvalidConfigurationError, counted


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


def config(
    model_directory: Annotated[
        Path,
        typer.Argument(
            help="The model's directory in the repository (holds 1/model.onnx).",
            metavar="MODEL_DIR",
            show_default=False,
        ),
    ],
    max_batch_size: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="For a model whose first dimension is dynamic in all inputs and outputs; 0 "
            "serves it unbatched; by default 4, as in Triton.",
            show_default=False,
        ),
    ] = None,
    stdout: Annotated[
        bool, typer.Option("--stdout", help="Print the text instead of writing it.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Complete an existing config.pbtxt.")
    ] = False,
) -> None:
    """Write a complete config.pbtxt, so that Triton need not auto-complete it.

    Triton spends about a second on auto-completion at every load; with complete entries the
    server can run with `--disable-auto-complete-config`. All but the backend's name is what
    `brisk serve` completes an entry without one to. What is written stays as it is.
    """
    if model_directory.exists() and not model_directory.is_dir():
        raise InvalidConfigurationError(
            f"'{model_directory}' is no directory; expected a model's, which holds 1/model.onnx"
        )
    target = model_directory / "config.pbtxt"
    if target.exists() and not stdout and not force:
        raise InvalidConfigurationError(
            f"'{target}' exists; --force adds what it lacks, --stdout prints instead"
        )
    from brisk.cli.views.entries import configuration_text

    text = configuration_text(model_directory, max_batch_size)
    if stdout:
        print(text, end="")
        return
    _write(target.resolve(), text.encode("utf-8", "surrogateescape"))
    print(f"wrote {target}")


def _write(target: Path, content: bytes) -> None:
    """Give a file its new content, or leave it as it was.

    Raises InvalidConfigurationError if its folder cannot be written, OSError for other reasons.
    """
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.unfinished")
    try:
        try:
            unfinished.write_bytes(content)
        except PermissionError as error:
            raise InvalidConfigurationError(
                f"'{target.parent}' cannot be written: {error.strerror}; expected a folder that "
                "this user may write to, or --stdout"
            ) from error
        if target.exists():
            shutil.copymode(target, unfinished)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def prepare(
    model: ModelArgument,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads to measure with; by default the usable cores."),
    ] = None,
    disk: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Most that stored weights take, as a multiple of the model's files; else 4.5.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Optimise each segment of a model here, measure what packing its weights gains, and keep it.

    A start of the model then maps what is kept instead of reading ONNX. The runtime prepares
    models by itself, in the background; this is for images and for the first start of all. Of a
    repository, all models.
    """
    from brisk.cli.views.learning import read_aim
    from brisk.exits.files.versions import taps_of_latest
    from brisk.pipelines import is_pipeline

    def prepare_all(entry: Path) -> None:
        for file in version_files(entry).values() if entry.is_dir() else [entry.resolve()]:
            if entry == model or not is_pipeline(file):
                takes_learned = not entry.is_dir() or read_aim(entry, file) is not None
                taps = taps_of_latest(file, takes_learned=takes_learned)
                _prepare(file, threads or len(os.sched_getaffinity(0)), disk, taps)

    for_each_entry(model, prepare_all)


def _prepare(file: Path, cores: int, disk: float | None, taps: tuple[str, ...]) -> None:
    from brisk.protocol.entry_files import REMOTE_FILE

    if file.name == REMOTE_FILE:
        raise InvalidConfigurationError(
            f"'{file}' is no ONNX file: it names a model that lies elsewhere, whose prepared form "
            "`brisk publish` makes where it is published, and a server that has fetched it makes "
            "in the background; expected an entry with a model of its own"
        )
    from brisk.cli.views.segments import packing_words
    from brisk.segments.prepared.form import PreparedModel
    from brisk.segments.prepared.preparation import DISK_FACTOR, prepare

    try:
        factor = DISK_FACTOR if disk is None else disk
        preparation = prepare(file, cores, taps, disk_factor=factor)
    except OSError as error:
        raise InvalidConfigurationError(
            f"the prepared form of {file} cannot be written: {error.strerror or error}"
        ) from error
    segments = PreparedModel(preparation.path, file, cores, taps).kept
    print(f"{file}: {counted(len(segments), 'segment')}")
    for segment, each in zip(preparation.plan.segments, segments, strict=True):
        print(f"  {segment.index}: {segment.words}")
        print(f"     {packing_words(each)}")
    size = preparation.path.stat().st_size / 1e6
    print(f"  wrote {preparation.path} ({size:.1f} MB) in {preparation.seconds:.1f} s")
