"""A peer of a swarm by libtorrent, run in a host for ``brisk_bench.fleet.transfers``.

It is run by the path of this file, in any interpreter that has libtorrent: with ``seed FILE
TORRENT ADDRESS``, which writes the torrent, or ``fetch FOLDER TORRENT ADDRESS``; it writes and
reads lines of JSON. Peers get each other's addresses so: there is no tracker and no DHT. TCP
without encryption, as the other sides have. Nothing of this package.

Other settings were tried with four fetchers at 500 Mbit/s. Super-seeding took three times as long;
longer queues of requests, other numbers of open slots and earlier announcements of pieces made no
difference, or a worse one.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import libtorrent

_PIECE_BYTES = 1 << 20
_PATIENCE_S = 10.0
_BETWEEN_S = 0.01

_UNENCRYPTED = 2
_SETTINGS: dict[str, object] = {
    "alert_mask": libtorrent.alert.category_t.status_notification
    | libtorrent.alert.category_t.error_notification,
    "close_redundant_connections": False,  # between peers that only upload: before the start
    "enable_dht": False,
    "enable_lsd": False,
    "enable_natpmp": False,
    "enable_upnp": False,
    "enable_incoming_utp": False,
    "enable_outgoing_utp": False,
    "in_enc_policy": _UNENCRYPTED,
    "out_enc_policy": _UNENCRYPTED,
    "request_queue_time": 1,
}


def seed(file: Path, torrent: Path, address: str) -> None:
    """Describe the file for fetchers, and upload it until the end."""
    created = libtorrent.create_torrent(libtorrent.list_files(str(file)), _PIECE_BYTES)
    libtorrent.set_piece_hashes(created, str(file.parent))
    torrent.write_bytes(libtorrent.bencode(created.generate()))
    session, handle = _taking_part(torrent, file.parent, address, fetches=False)
    _connect(session, handle)
    _hear()
    start_s = _processor_s()
    _hear()
    _say(processor_s=_processor_s() - start_s)


def fetch(folder: Path, torrent: Path, address: str) -> None:
    """Wait for a line, download into the folder, report the end; upload until the next line."""
    session, handle = _taking_part(torrent, folder, address, fetches=True)
    _connect(session, handle)
    _hear()
    start_s = _processor_s()
    handle.unset_flags(libtorrent.torrent_flags.upload_mode)
    _wait_for_the_end(session)
    _say(finished_ns=time.monotonic_ns())
    _hear()
    _say(processor_s=_processor_s() - start_s)


def _taking_part(torrent: Path, folder: Path, address: str, *, fetches: bool) -> tuple[Any, Any]:
    """Return a session and its torrent; one that ``fetches`` asks for nothing yet."""
    flags = libtorrent.torrent_flags
    # 0.0.0.0 would be a port for each interface
    session = libtorrent.session({**_SETTINGS, "listen_interfaces": f"{address}:0"})
    parameters = libtorrent.load_torrent_file(str(torrent))
    parameters.save_path = str(folder)
    parameters.flags = flags.update_subscribe | (flags.upload_mode if fetches else flags.seed_mode)
    return session, session.add_torrent(parameters)


def _connect(session: Any, handle: Any) -> None:
    """Report a port; connect to the peers that are read, and report when enough are connected.

    The other peers connect to this one.
    """
    _wait_until(lambda: bool(session.listen_port()), "libtorrent does not listen")
    _say(port=session.listen_port())
    task = _hear()
    for address, port in task["peers"]:
        handle.connect_peer((address, port))
    _wait_until(lambda: len(_connected(handle)) >= task["wanted"], "not all peers are connected")
    _say(connected=task["wanted"])


def _connected(handle: Any) -> list[Any]:
    unready = libtorrent.peer_info.connecting | libtorrent.peer_info.handshake
    return [peer for peer in handle.get_peer_info() if not peer.flags & unready]


def _wait_for_the_end(session: Any) -> None:
    """Wait until all pieces are there and checked. Ends the program if libtorrent fails."""
    while True:
        session.wait_for_alert(1000)
        for alert in session.pop_alerts():
            if isinstance(alert, libtorrent.torrent_finished_alert):
                return
            if isinstance(alert, (libtorrent.torrent_error_alert, libtorrent.file_error_alert)):
                sys.exit(alert.message())


def _wait_until(condition: Any, otherwise: str) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            sys.exit(otherwise)
        time.sleep(_BETWEEN_S)


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _say(**message: object) -> None:
    print(json.dumps(message), flush=True)


def _hear() -> dict[str, Any]:
    line = sys.stdin.readline()
    return dict(json.loads(line)) if line else sys.exit("nobody is there")


if __name__ == "__main__":
    {"seed": seed, "fetch": fetch}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
