"""``brisk publish`` and ``brisk hosts``: publishing models, and hosts that fetch them and pass
them on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from brisk.cli.commands.models import ModelArgument, VersionOption
from brisk.cli.views.model_files import model_file

hosts = typer.Typer(
    name="hosts",
    help="Models that this host fetches and passes on; certificates for hosts.",
    invoke_without_command=True,
)


def publish(
    model: ModelArgument,
    url: Annotated[
        str,
        typer.Argument(
            help="A folder, or a URL: http(s):// of a server that takes PUT, s3://.",
            metavar="URL",
            show_default=False,
        ),
    ],
    version: VersionOption = None,
    found_at: Annotated[
        str | None,
        typer.Option("--found-at", help="The URL that hosts fetch it from, if it differs."),
    ] = None,
    form: Annotated[
        bool, typer.Option(help="Publish the prepared form for machines like this one, too.")
    ] = True,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads to measure with; by default the usable cores."),
    ] = None,
    entry: Annotated[
        Path | None,
        typer.Option(help="Write model.remote here instead of printing it.", show_default=False),
    ] = None,
) -> None:
    """Write a model's files below a URL, with a manifest: of their digests, of the order in which
    a start reads them, and of its prepared form, which is made if it is not there.

    What is printed is the content of a `model.remote`: an entry that has it in its version's
    folder instead of a model starts while the model arrives.
    """
    from brisk.copies.manifest import write_manifest
    from brisk.protocol.entry_files import CONFIG_FILE
    from brisk.publishing.describing import cuts_of, describe
    from brisk.publishing.writing import check_places, remote_text
    from brisk.publishing.writing import publish as write
    from brisk.segments.prepared.preparation import is_prepared, prepare

    check_places(url, found_at or url)  # first: what follows may take minutes
    file, cores = model_file(model, version), threads or len(os.sched_getaffinity(0))
    if form and not is_prepared(file, cores, cuts := cuts_of(file)):
        prepare(file, cores, cuts)
    published = describe(file, cores, with_form=form)
    text = write(published, url, lambda line: print(line, file=sys.stderr))
    if found_at is not None:
        text = remote_text(found_at, write_manifest(published.manifest))
    if entry is None:
        print(text, end="")
        return
    entry.parent.mkdir(parents=True, exist_ok=True)
    entry.write_text(text)
    print(f"wrote {entry}")
    config = entry.parent.parent / CONFIG_FILE
    if not config.is_file() or b"backend" not in config.read_bytes():
        print(f'where `brisk serve` makes no view, {config} must have backend: "brisk"')


@hosts.callback()
def show(context: typer.Context) -> None:
    """What this host's courier fetches and serves just now: bytes that are here, where from, for
    whom, and what is wrong."""
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console
    from rich.table import Table

    from brisk.copies.connection import is_there
    from brisk.copies.courier import Courier

    if not is_there():
        print("no courier runs here: nothing is fetched or served")
        return
    with Courier() as courier:
        copies = courier.status()
    if not copies:
        print("the courier fetches and serves nothing just now")
        return
    table = Table("copy of", "MB here", "MB/s", "receivers", "from", "problem")
    for each in copies:
        sources = [
            f"{source['name']}: {source['bytes_total'] / 1e6:.1f} MB"
            for source in each.get("sources", ())
            if source["bytes_total"]
        ]
        table.add_row(
            each["url"],
            f"{each.get('bytes_here', 0) / 1e6:.1f} of {each.get('bytes', 0) / 1e6:.1f}",
            f"{each.get('bytes_per_s', 0.0) / 1e6:.1f}",
            str(each.get("receivers", 0)),
            "\n".join(sources),
            each.get("problem", ""),
        )
    Console(markup=False, emoji=False).print(table)


@hosts.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder of the authority and its certificates.")],
    names: Annotated[
        list[str],
        typer.Argument(
            help="A name or address of each host, as others call it.", metavar="HOST..."
        ),
    ],
) -> None:
    """Make an authority of your own, unless it is there, and a certificate for each host.

    A host gets its own folder below, and is given that by `BRISK_PEER_KEYS`. The authority's key
    stays where it is: whoever has it can make more hosts.
    """
    from brisk.sourcing.sources.certificates import make_keys

    for place in make_keys(folder, names):
        print(f"wrote {place}")
