"""An S3-compatible server for tests: moto, in a process of its own, with everything in memory."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_port
from tests.support.waiting import until


@contextmanager
def moto_server() -> Iterator[int]:
    """A server that has the bucket ``bucket``; its port, on this machine only."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: _has_bucket(port), "moto", within_s=60)
            yield port
        finally:
            server.kill()


def _has_bucket(port: int) -> bool:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
