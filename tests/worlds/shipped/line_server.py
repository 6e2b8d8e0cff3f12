"""A server that sends lines to whoever connects, as ``nc -lk`` does, and whose network can be cut."""

from __future__ import annotations

import socket
import struct
import threading
from types import TracebackType

from tests.worlds.flow_world import wait_until

_RESET = struct.pack("ii", 1, 0)


class LineServer:
    """Sends lines to the newest connection; use as a context."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._connections: list[socket.socket] = []
        self._accept()

    def __enter__(self) -> LineServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()

    @property
    def made(self) -> int:
        """Number of connections that were made so far."""
        return len(self._connections)

    def send(self, *lines: str) -> None:
        """Send lines in one piece."""
        self._connections[-1].sendall("".join(f"{line}\n" for line in lines).encode())

    def cut(self) -> None:
        """End the connections, and take no new ones."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)
        for connection in self._connections:
            if connection.fileno() >= 0:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                connection.close()

    def mend(self) -> None:
        """Take connections again, at the same port."""
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self._accept()

    def wait_for(self, number: int) -> None:
        """Wait until so many connections were made."""
        wait_until(lambda: self.made >= number, 180)

    def _accept(self) -> None:
        self._thread = threading.Thread(target=self._serve, args=(self._listening,), daemon=True)
        self._thread.start()

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return  # the network is cut
            self._connections.append(connection)
