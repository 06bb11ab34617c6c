"""An S3-compatible server for tests: moto, in a process of its own, with everything in memory.

    python -m tests.support.moto <port>

Moto looks whether an object is there, and then creates it: of two who ask at once, both may create it, and the race
for names sees that now and then. Here requests with a condition are answered one after another. Moto also spends most
of its time on the text of listings, since each entry passes through a general serializer; here a listing is written as
it stands, five times faster.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any
from xml.sax.saxutils import escape

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


Serializer = Callable[[Any, Any], Any]


def quick_listings(serialized: Serializer) -> Serializer:
    """The same serializer of S3's answers, which writes listings by itself."""

    def answered(response: Any, result: Any) -> Any:
        if response.data.get("Action") != "ListObjectsV2":
            return serialized(response, result)
        name = "ListBucketResult"
        body = f'<{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{_xml(result.result)}</{name}>'
        return 200, {"Content-Type": "application/xml"}, body

    return answered


def _xml(value: Any) -> str:
    if isinstance(value, dict):
        pairs = ((k, one) for k, v in value.items() for one in (v if isinstance(v, list) else [v]))
        return "".join(f"<{name}>{_xml(one)}</{name}>" for name, one in pairs)
    return escape(str(value).lower() if isinstance(value, bool) else str(value))


def main(port: int) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.responses import S3Response
    from werkzeug.serving import run_simple

    S3Response.serialized = quick_listings(S3Response.serialized)  # type: ignore[assignment, method-assign]
    application = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", port, conditions_in_turn(application), threaded=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
