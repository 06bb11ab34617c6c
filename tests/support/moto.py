"""An S3-compatible server for tests: moto, in a process of its own, with everything in memory.

    python -m tests.support.moto <port>

Moto looks whether an object is there, and then creates it: of two who ask at once, both may create it, and the race
for names sees that now and then. Here requests with a condition are answered one after another.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from tests.support.ports import free_port
from tests.support.stores import has_bucket
from tests.support.waiting import until


@contextmanager
def moto_server() -> Iterator[int]:
    """A server that has the bucket ``bucket``; its port, on this machine only."""
    port = free_port()
    command = [sys.executable, "-m", "tests.support.moto", str(port)]
    repository = Path(__file__).parents[2]
    with subprocess.Popen(
        command, cwd=repository, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            until(lambda: has_bucket(port, "bucket"), "moto", within_s=60)
            yield port
        finally:
            server.kill()


Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


def conditions_in_turn(application: Application) -> Application:
    """The same application, which answers one request with a condition at a time."""
    turn = Lock()

    def answered(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if "HTTP_IF_NONE_MATCH" not in environ:
            return application(environ, start_response)
        with turn:
            return list(application(environ, start_response))

    return answered


def main(port: int) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    application = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", port, conditions_in_turn(application), threaded=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
