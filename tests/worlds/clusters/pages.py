"""Pages of a cluster, or of a registry, that a test speaks for."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from streamkeeper.clusters import cluster_drivers


class Page(BaseHTTPRequestHandler):
    """Answers whole, and logs nothing."""

    def say(self, code: int, text: bytes = b"", kind: str = "application/json") -> None:
        """Answer a request."""
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


class Pages:
    """Serves pages until it is closed. ``place`` is their host and port."""

    def __init__(self, page: type[Page], port: int = 0) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", port), page)
        self.place = f"127.0.0.1:{self._server.server_address[1]}"
        cluster_drivers.trust(f"http://{self.place}")
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
