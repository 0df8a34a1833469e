"""Peers, models and requests of a worker's parts, as objects, without a worker."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brisk.os_priority import Precedence
from brisk.protocol.records import Infer, InferForm, LoadModel, Region, TensorForm
from brisk.protocol.shared_memory import MARK_BYTES
from brisk.runtime.models.entry import Binding, SessionEntry
from brisk.runtime.models.load_watch import LoadWatch
from brisk.runtime.models.loader import Loader
from brisk.runtime.models.table import SessionTable
from brisk.runtime.peers.connections import Peer
from brisk.runtime.pipelines.loading import PipelineLoads
from brisk.runtime.requests.table import Request
from brisk.runtime.sessions.session import CachedRun, Due, Frame, Servable
from brisk.runtime.sessions.session_caches import SessionCaches
from brisk.scheduling.job_class import JobClass
from brisk.segments.table import SegmentTable
from brisk.segments.values import Value

NOWHERE = Region(0, 0, MARK_BYTES)
"""A region of a peer's memory, for marks that nobody reads."""


def a_peer(number: int = 1) -> Peer:
    """Return a peer that is connected to nobody and has a page of memory."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        return with_memory(Peer(number, connection, os.getpid()))


def with_memory(peer: Peer) -> Peer:
    """Return the peer, with a page of memory that marks may lie in."""
    memory = os.memfd_create("peer", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, mmap.PAGESIZE)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    peer.view.attach(0, mmap.PAGESIZE, memory)
    return peer


def a_model(
    path: Path = Path("net/1/model.onnx"),
    job_class: JobClass = JobClass.NORMAL,
    max_batch_size: int = 0,
) -> LoadModel:
    """Return the record with which a stub asks for a model; it batches if it can."""
    return LoadModel(
        name=path.parent.name,
        version=1,
        path=str(path),
        max_batch_size=max_batch_size,
        batching=max_batch_size > 0,
        max_queue_size=8,
        job_class=job_class.value,
        mark=NOWHERE,
    )


class NotingLoader(Loader):
    """Notes what it is asked for, and loads nothing."""

    def __init__(self) -> None:
        self.asked: list[SessionEntry] = []
        self.dropped: list[SessionEntry] = []

    def load(self, entry: SessionEntry) -> None:
        self.asked.append(entry)

    def raise_priority(self, entry: SessionEntry, job_class: str) -> None:
        return None

    def drop(self, entry: SessionEntry) -> None:
        self.dropped.append(entry)


def a_session_table(loader: Loader) -> SessionTable:
    """Return a table without models, whose loads ``loader`` does."""
    loads = PipelineLoads(loader.tell, LoadWatch(60.0))
    return SessionTable(loader, loads, Precedence(0, print, set))


@dataclass
class ASession:
    """A loaded session that runs nothing; its segments are ``table``'s."""

    load_ns: int = 0
    summary: str = ""
    threads: int = 2
    weight_bytes: int = 0
    has_steady_runs: bool = True
    is_loading: bool = False
    awaits_load: bool = False
    awaits_bytes: bool = False
    table: SegmentTable[Any] | None = field(default_factory=lambda: a_table())
    caches: SessionCaches | None = None

    def start(
        self,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        agreement: float | None = None,
        dues: Sequence[Due] = (),
    ) -> Frame:
        raise NotImplementedError

    def cached_runs(
        self,
        frame: Frame,
        inputs: Mapping[str, Value],
        labels: tuple[str, str],
        agreement: float | None = None,
    ) -> Sequence[CachedRun]:
        raise NotImplementedError

    def close(self) -> None:
        return None


def a_table(count: int = 3) -> SegmentTable[str]:
    """Return a table of ``count`` segments, of which none is loaded."""
    return SegmentTable(count, lambda index: f"segment {index}")


@dataclass
class AFrame:
    """A frame at its first segment."""

    early: None = None
    position: int = 0
    upcoming: str = ""
    is_finished: bool = False

    def step(self) -> bool:
        raise NotImplementedError

    def results(self) -> dict[str, Value]:
        raise NotImplementedError


def a_request(
    number: int,
    model: LoadModel | None = None,
    session: Servable | None = None,
    tensors: tuple[TensorForm, ...] = (),
    deadline_ns: int | None = None,
    job_class: JobClass = JobClass.NORMAL,
) -> Request:
    """Return a request of a peer of its own, waiting for a model whose key is ``model``."""
    peer = a_peer()
    form = InferForm(0, tensors, ("y",) if tensors else (), job_class.value)
    record = Infer(number, form, (NOWHERE,) * len(tensors), NOWHERE, deadline_ns)
    binding = Binding(peer, model or a_model(), "model", session)
    mark = peer.view.memory(NOWHERE)
    return Request(number, "model", job_class, 0, deadline_ns, peer, record, binding, mark)
