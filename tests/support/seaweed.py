"""An S3-compatible server for tests that keeps what it has on the disk, and can be killed: SeaweedFS.

``make test-stores`` installs it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.stores import KEY, SECRET, has_bucket
from tests.support.waiting import until

_PORTS = ("master.port", "volume.port", "filer.port", "s3.port")
_OPTIONS = {
    "ip": "127.0.0.1",
    "ip.bind": "127.0.0.1",
    "master.volumeSizeLimitMB": "64",
    "master.electionTimeout": "1s",  # it elects itself again after each start
    "master.heartbeatInterval": "100ms",
    "master.telemetry": "false",
    "s3.iam": "false",
    "s3.port.iceberg": "0",
    "s3.port.lance": "0",
}


@dataclass
class Seaweed:
    """A server on this machine only, with all its parts in one process."""

    directory: Path
    bucket: str
    ports: dict[str, int] = field(default_factory=dict)
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        names = [*_PORTS, *(f"{name}.grpc" for name in _PORTS), "metricsPort"]
        self.ports = {name: free_port() for name in names}

    @property
    def port(self) -> int:
        """That clients use."""
        return self.ports["s3.port"]

    def start(self) -> None:
        """Start, and wait until it answers."""
        program = Path(sys.executable).with_name("weed")
        if not program.exists():
            raise FileNotFoundError("SeaweedFS is not installed: run these tests with make test-stores")
        keys = self.directory / "keys.json"
        options = _OPTIONS | {name: str(port) for name, port in self.ports.items()}
        options |= {"dir": str(self.directory), "s3.config": str(keys)}
        command = [str(program), "server", "-s3", "-filer", *(f"-{name}={v}" for name, v in options.items())]
        self.directory.mkdir(parents=True, exist_ok=True)
        keys.write_text(json.dumps({"identities": _identities()}))
        with (self.directory.parent / f"{self.directory.name}.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.starts += 1
        until(lambda: has_bucket(self.port, self.bucket), "SeaweedFS", within_s=120)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def _identities() -> list[dict[str, Any]]:
    """Whoever signs has to have the keys of this process; the bucket is made without."""
    pair = {"accessKey": os.environ[KEY], "secretKey": os.environ[SECRET]}
    return [
        {"name": "tests", "credentials": [pair], "actions": ["Admin", "Read", "Write", "List", "Tagging"]},
        {"name": "anonymous", "actions": ["Admin"]},
    ]


@contextmanager
def seaweed_server(directory: Path, bucket: str) -> Iterator[Seaweed]:
    """A running server."""
    server = Seaweed(directory, bucket)
    server.start()
    try:
        yield server
    finally:
        server.kill()
