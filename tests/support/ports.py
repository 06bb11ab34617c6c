"""Ports for servers of tests."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port on this machine that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
