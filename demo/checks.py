"""What must be true before the demo starts anything. Each check says what was found, what is allowed, and
what to do.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable
from functools import partial

from streamkeeper.errors import StorageError
from streamkeeper.jars.folder import JarsError, jar_paths
from streamkeeper.jars.java import JavaError, find_java
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage

DEFAULT_PORT = 8080


class NotReady(Exception):
    """The demo cannot start; nothing was started. The message lists everything that stands in its way."""


def check_ready(settings: Settings, port: int) -> None:
    """Check Java, the jars, the port, and the folders that are written, and report all misfits together.

    :raises NotReady: any of them does not do.
    """
    wrong = [*_installed(settings), *_port(port), *_folders(settings)]
    if wrong:
        raise NotReady(
            "\n".join(["The demo cannot start, and nothing was started:", *(f"- {item}" for item in wrong)])
        )


def port_is_free(port: int) -> bool:
    """Say whether this machine lets us listen on a port of its own address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _installed(settings: Settings) -> list[str]:
    looks: tuple[Callable[[], object], ...] = (find_java, partial(jar_paths, settings.jars))
    wrong = []
    for look in looks:
        try:
            look()
        except (JavaError, JarsError) as error:
            wrong.append(str(error))
    return wrong


def _port(port: int) -> list[str]:
    if not 1024 <= port <= 65535:
        return [
            f"Port {port} cannot be used; allowed are 1024 to 65535. Choose one: make demo"
            f" PORT={DEFAULT_PORT}."
        ]
    if port_is_free(port):
        return []
    other = next((number for number in range(port + 1, 65536) if port_is_free(number)), None)
    choose = (
        f"choose another, such as {other}: make demo PORT={other}"
        if other
        else "choose another: make demo PORT=…"
    )
    return [f"Port {port} is taken by another program. Stop that one, or {choose}."]


def _folders(settings: Settings) -> list[str]:
    wrong = []
    places = {"STATE": settings.state, "WAREHOUSE": settings.warehouse, "DATA": settings.data}
    for name, location in places.items():
        probe = f".writable-{uuid.uuid4().hex}"
        storage = open_storage(location)
        try:
            storage.overwrite(probe, b"")
            storage.remove(probe)
        except StorageError as error:
            reason = str(error.__cause__ or error)
            wrong.append(
                f"The folder {location} cannot be written: {reason}. It must be writable for you: correct its"
                f" owner or mode, or set STREAMKEEPER_{name} to another folder."
            )
    return wrong
