"""Lends whole small networks to the frontends, which then answer requests themselves.

A request of such a network costs several times its computation in wake-ups and in the Python
code of a second process, whose caches are cold. A worker could not interrupt it either: it is a
single run, of less time than Triton takes to handle the request. Best-effort requests still go to
the background worker.

Used by the foreground worker's main thread.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from brisk.runtime import torch_process
from brisk.runtime.saying import say
from brisk.runtime.session import Session
from brisk.runtime.session_entry import Binding
from brisk.runtime.sessions import SessionTable
from brisk.runtime.transport import Transport
from brisk.telemetry.spans import SPANS
from brisk.wire.datatypes import BY_ELEMENT_NAME
from brisk.wire.records import Lend, Recall, TensorForm

if TYPE_CHECKING:
    from brisk.native.portable import PortableNetwork, PortableTensor
    from brisk.runtime.torch_session import TorchSession


class Lending:
    """Which bindings have a loan; ``longest_ns``: of a network's run, as predicted; 0: no loans.

    Nothing is lent while its kernels may yet change, or while somebody records what requests do.
    A network with learned caches stops at its exits, so it is never a single run.
    """

    def __init__(self, transport: Transport, sessions: SessionTable, longest_ns: float) -> None:
        self._transport = transport
        self._sessions = sessions
        self._longest_ns = longest_ns

    def look(self) -> None:
        """Lend what can be lent by now, and recall what must not be lent any more."""
        if not self._longest_ns:
            return
        for use in self._sessions.uses():
            for binding in use.bindings:
                session = binding.session
                if SPANS.is_on:
                    self._recall(binding)
                elif binding.sequences is not None or binding.is_lent:
                    continue  # the states are here
                elif (
                    torch_process.is_there()
                    and isinstance(session, Session)
                    and session.is_settled
                ):
                    self._lend(binding, session)

    def _recall(self, binding: Binding) -> None:
        if binding.is_lent:
            binding.is_lent = False
            self._transport.send(binding.peer, Recall(binding.model.model))

    def _lend(self, binding: Binding, session: Session) -> None:
        from brisk.execution.portable import portable_program

        if not torch_process.is_there() or session.table.joined is None:
            return
        loaded = cast("TorchSession", session).loaded
        network = portable_program(loaded, session.table.joined, self._longest_ns)
        if network is None:
            return
        try:
            descriptor = _in_memory(network.content)
        except OSError as error:
            say(f"model '{binding.model.name}' is not lent: {error}")
            return
        binding.is_lent = True
        self._transport.send(binding.peer, _record(binding.model.model, network), descriptor)


def _record(model: int, network: PortableNetwork) -> Lend:
    return Lend(
        model,
        str(network.library),
        len(network.content),
        network.steps,
        network.floats,
        network.images,
        tuple(map(_form, network.inputs)),
        tuple(map(_form, network.outputs)),
    )


def _form(tensor: PortableTensor) -> TensorForm:
    return TensorForm(tensor.name, BY_ELEMENT_NAME[tensor.dtype].name, tensor.sizes)


def _in_memory(content: bytes) -> int:
    """A descriptor of memory that holds ``content``; OSError where there is none."""
    descriptor = os.memfd_create("brisk-network", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
