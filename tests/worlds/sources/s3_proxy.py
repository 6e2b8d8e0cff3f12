"""A proxy before an S3 server, which loses answers, delays or refuses requests, and leaves conditions out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BUSY = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>Please reduce your request'
    b" rate.</Message></Error>"
)
DENIED = (
    b'<?xml version="1.0" encoding="UTF-8"?><DeleteResult><Error><Key>of the caller</Key>'
    b"<Code>AccessDenied</Code><Message>Access Denied</Message></Error></DeleteResult>"
)


@dataclass
class Proxy:
    """What the proxy does, and the requests that it has passed on, as ``PUT /bucket/key``."""

    url: str = ""
    loses: Callable[[str], bool] = lambda request: False
    """Says of a request that was carried out whether its answer is lost."""
    ignores_conditions: bool = False
    """Whether the server behaves as one that does not know ``If-None-Match``."""
    delay: float = 0.0
    """Seconds that each request waits."""
    keeps: bool = False
    """Whether objects may not be removed: one request is refused, one for many tells of errors."""
    refuses: bool = False
    """Whether each request is answered with 503, as a store does that has too much to do."""
    requests: list[str] = field(default_factory=list)

    def lose_first(self, request: str, times: int = 1) -> None:
        """Lose the first answers to requests that begin so."""
        left = threading.Semaphore(times)
        self.loses = lambda found: found.startswith(request) and left.acquire(blocking=False)


@contextmanager
def proxy(server: str) -> Iterator[Proxy]:
    """Run a proxy on a free port, before ``host:port``."""
    ways = Proxy()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = f"{self.command} {self.path}"
            ways.requests.append(request)
            time.sleep(ways.delay)
            if ways.refuses:
                self.refuse(503, BUSY)
                return
            if ways.keeps and (self.command == "DELETE" or request.endswith("?delete")):
                self.refuse(403 if self.command == "DELETE" else 200, DENIED)
                return
            try:
                answer, content = self.asked(body)
            except (OSError, HTTPException):  # the server is gone, and so is this connection
                self.close_connection = True
                return
            if ways.loses(request):
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "date", "server"):
                    self.send_header(name, value)
            if answer.getheader("Content-Length") is None:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def asked(self, body: bytes) -> tuple[HTTPResponse, bytes]:
            there = HTTPConnection(server, timeout=60)
            there.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if not (name.lower() == "if-none-match" and ways.ignores_conditions):
                    there.putheader(name, value)
            there.endheaders(body)
            answer = there.getresponse()
            content = answer.read()
            there.close()
            return answer, content

        def refuse(self, status: int, content: bytes) -> None:
            content = b"" if self.command == "HEAD" else content
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def handle_expect_100(self) -> bool:
            self.send_response_only(100)
            self.end_headers()
            return True

    for verb in ("GET", "PUT", "POST", "DELETE", "HEAD"):
        setattr(Handler, f"do_{verb}", Handler.pass_on)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads = True
        ways.url = f"http://127.0.0.1:{running.server_address[1]}"
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield ways
        running.shutdown()
