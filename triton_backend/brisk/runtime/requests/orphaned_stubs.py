"""Stubs that survive their server, and peers that never say who they are."""

from __future__ import annotations

from brisk.protocol.host.parent_watch import birth_of, end_orphan
from brisk.runtime.requests.connections import Connections

ORPHAN_GRACE_NS = 3_000_000_000
"""How long a stub may live on after its server before the worker ends it."""

GREETING_TIMEOUT_NS = 10_000_000_000
"""How long a peer may be connected without a Hello."""


class Orphans:
    """Used by the worker's main thread."""

    def __init__(self, transport: Connections) -> None:
        self._transport = transport

    def retire(self, now_ns: int) -> None:
        """End the stubs whose server has died; reads a file for each peer."""
        for peer in self._transport.peers():
            if not peer.parent or birth_of(peer.parent) == peer.server_birth:
                peer.orphaned_ns = None
            elif peer.orphaned_ns is None:
                peer.orphaned_ns = now_ns
            elif now_ns - peer.orphaned_ns >= ORPHAN_GRACE_NS:
                end_orphan(peer.pid)
                self._transport.drop(peer, "its server has died")
            if not peer.is_welcome and now_ns - peer.connected_ns >= GREETING_TIMEOUT_NS:
                self._transport.drop(peer, "it has not said who it is")
