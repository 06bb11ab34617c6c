"""A proxy before an S3-compatible server: counts requests, and does to them what networks and stores do.

What happens to a request is up to ``fault``, which gets it and says so: an answer is lost after the server did what was
asked, a request arrives after its client gave up, the server answers otherwise, or ignores the condition.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Request:
    """A request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def creates_an_entry(self) -> bool:
        """Whether it is the put-if-absent of an entry of a log."""
        return self.method == "PUT" and "/_delta_log/" in self.path and self.path.endswith(".json")


@dataclass
class Fault:
    """What becomes of one request.

    Attributes:
        status: answered in place of the server, which never sees the request.
        lose_request: the connection ends without a word; the server never sees the request.
        lose_answer: the server does what is asked, and the connection ends without a word.
        late_s: the connection ends at once; the server gets the request so many seconds later.
        without_condition: the server does not see the condition.
    """

    status: int | None = None
    lose_request: bool = False
    lose_answer: bool = False
    late_s: float | None = None
    without_condition: bool = False


@dataclass
class StoreProxy:
    """A running proxy."""

    upstream: int
    endpoint: str = ""
    fault: Callable[[Request], Fault | None] = lambda _: None
    seen: list[tuple[str, str]] = field(default_factory=list)
    late: list[threading.Thread] = field(default_factory=list)

    def forward(self, request: Request) -> tuple[int, list[tuple[str, str]], bytes]:
        """Ask the server; status, headers and body of its answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        try:
            connection.request(request.method, request.path, request.body or None, request.headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    @contextmanager
    def counted(self) -> Iterator[list[tuple[str, str]]]:
        """The requests that come meanwhile."""
        before, during = len(self.seen), list[tuple[str, str]]()
        yield during
        during += self.seen[before:]


@contextmanager
def store_proxy(upstream: int) -> Iterator[StoreProxy]:
    """A proxy before the server at a port of this machine."""
    proxy = StoreProxy(upstream)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(proxy))
    server.daemon_threads = True
    proxy.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        for one in proxy.late:
            one.join()
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(proxy: StoreProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # headers and body are two writes

        def handle_one(self) -> None:
            request = Request(self.command, self.path, dict(self.headers), self._body())
            proxy.seen.append((request.method, request.path))
            fault = proxy.fault(request) or Fault()
            dropped = {"expect", "transfer-encoding", "if-none-match" if fault.without_condition else ""}
            request.headers = {k: v for k, v in request.headers.items() if k.lower() not in dropped}
            if fault.late_s is not None:
                proxy.late.append(threading.Thread(target=_later, args=(proxy, request, fault.late_s)))
                proxy.late[-1].start()
                self._hang_up()
            elif fault.lose_request:
                self._hang_up()
            elif fault.status is not None:
                self._answer(fault.status, [], b"")
            else:
                self._forward(request, lose_answer=fault.lose_answer)

        def _forward(self, request: Request, *, lose_answer: bool) -> None:
            try:
                status, headers, body = proxy.forward(request)
            except (OSError, http.client.HTTPException):  # the server is gone
                self._hang_up()
                return
            if lose_answer:
                self._hang_up()
            else:
                self._answer(status, headers, body)

        def _body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            chunks = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response_only(status)
            skipped = {"transfer-encoding", "connection", "content-length"}
            for name, value in headers:
                if name.lower() not in skipped:
                    self.send_header(name, value)
            length = dict(headers).get("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _hang_up(self) -> None:
            self.close_connection = True
            self.connection.shutdown(2)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    for method in ("GET", "PUT", "HEAD", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.handle_one)
    return Handler


def _later(proxy: StoreProxy, request: Request, seconds: float) -> None:
    time.sleep(seconds)
    with suppress(OSError, http.client.HTTPException):  # the server is gone
        proxy.forward(request)
