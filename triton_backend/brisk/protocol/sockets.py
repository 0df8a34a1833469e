"""The kind of socket that Brisk's processes speak over."""

from __future__ import annotations

import socket


def new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
