"""Small real servers on free ports: one takes mail by SMTP, one takes a webhook's requests by HTTP. They keep
what came.
"""

from __future__ import annotations

import json
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Inbox:
    """What a server was sent: mails, or JSON bodies of requests and their paths. ``refuse`` lets it say no;
    ``answers`` are status, headers and body of the next answers, before those that it gives otherwise.
    """

    port: int = 0
    mails: list[EmailMessage] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    refuse: bool = False
    says: bytes = b""


@contextmanager
def mail_server() -> Iterator[Inbox]:
    """Serve SMTP (RFC 5321: greeting, EHLO, MAIL, RCPT, DATA, QUIT)."""
    inbox = Inbox()

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self._say("220 test ready")
            while line := self.rfile.readline():
                match line.split()[0].upper():
                    case b"DATA" if inbox.refuse:
                        self._say("554 no mail today")
                    case b"DATA":
                        self._say("354 continue")
                        inbox.mails.append(message_from_bytes(self._body(), policy=policy.default))
                        self._say("250 taken")
                    case b"QUIT":
                        self._say("221 bye")
                        return
                    case _:
                        self._say("250 test")

        def _say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

        def _body(self) -> bytes:
            lines = []
            while (line := self.rfile.readline()) != b".\r\n":
                lines.append(line[1:] if line.startswith(b"..") else line)
            return b"".join(lines)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session) as server:
        yield from _served(server, inbox)


@contextmanager
def webhook(certificate: Path | None = None) -> Iterator[Inbox]:
    """Serve HTTP: takes JSON by POST.

    :param certificate: a file with a certificate and its key, for HTTPS.
    """
    inbox = Inbox()

    class Request(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            inbox.paths.append(self.path)
            usual: tuple[int, dict[str, str], bytes] = (503 if inbox.refuse else 200, {}, inbox.says)
            status, headers, answer = inbox.answers.pop(0) if inbox.answers else usual
            if status < 300:
                inbox.bodies.append(json.loads(body))  # before the answer, by which who sent it goes on
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(answer))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        do_PATCH = do_POST  # noqa: N815 - the name that the server looks for

        def log_message(self, format: str, *args: Any) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Request) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        yield from _served(server, inbox)


def _served(server: socketserver.TCPServer, inbox: Inbox) -> Iterator[Inbox]:
    inbox.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield inbox
    finally:
        server.shutdown()
        thread.join()
