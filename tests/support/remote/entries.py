"""Entries whose models lie at a registry, and the courier of the host that fetches them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from brisk.copies.connection import lock_path
from brisk.publishing.describing import cuts_of
from brisk.publishing.describing import describe as described
from brisk.publishing.writing import publish, remote_text
from brisk.segments.prepared.preparation import prepare
from support.remote.registries import RegistryServer
from support.runtime.runtime_processes import processes_started_in


def end_courier(number: signal.Signals = signal.SIGKILL) -> None:
    """End this host's courier like a crash, or send it another signal."""
    for process in processes_started_in(lock_path().parent):
        with contextlib.suppress(OSError):
            if b"brisk.sourcing" in Path(f"/proc/{process}/cmdline").read_bytes():
                os.kill(process, number)


def publish_here(
    registry: RegistryServer, model: Path, name: str = "m", *, form: bool = False
) -> Path:
    """Publish a model at the registry. Return its ``model.remote``."""
    if form:
        prepare(model, 1, cuts_of(model))
    published = described(model, 1, with_form=form)
    text = publish(published, str(registry.folder / name))
    manifest = (registry.folder / name / "manifest.json").read_bytes()
    assert str(registry.folder) in text
    folder = model.parent / f"entry-{name}" / "1"
    folder.mkdir(parents=True)
    (folder / "model.remote").write_text(remote_text(f"{registry.url}/{name}", manifest))
    return folder / "model.remote"
