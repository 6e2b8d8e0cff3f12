"""How other servers are asked: in bounded time, for a bounded answer, and with logins for nobody else."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from streamkeeper.clusters import cluster_drivers
from streamkeeper.errors import SettingsError
from streamkeeper.flows.leases import ClusterDriver
from streamkeeper.readers import registry_schemas
from streamkeeper.settings import Settings
from streamkeeper.web import ask

LOGIN = {"Authorization": "Basic aHVudGVyMjpodW50ZXIy"}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
Answer = Callable[[socket.socket], None]


class Server:
    """Answers each request by a function, and keeps what it was sent."""

    def __init__(self, answer: Answer) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.requests: list[bytes] = []
        self._answer = answer
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._one, args=[connection], daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as sent, suppress(OSError):
            # Whole: an answer before the body was read ends in a reset.
            head = b"".join(iter(sent.readline, b"\r\n"))
            length = re.search(rb"(?i)^content-length: *(\d+)", head, re.MULTILINE)
            self.requests.append(head + sent.read(int(length[1]) if length else 0))
            self._answer(connection)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Server]]:
    made: list[Server] = []

    def start(answer: Answer) -> Server:
        made.append(Server(answer))
        return made[-1]

    yield start
    for server in made:
        server.close()


Serve = Callable[[Answer], Server]


def says(content: bytes) -> Answer:
    return lambda connection: connection.sendall(HEAD + b"\r\n" + content)


def drips(first: bytes, drop: bytes) -> Answer:
    """Make an answer that never ends, though no single read of it waits for long."""

    def drip(connection: socket.socket) -> None:
        connection.sendall(first)
        while True:
            connection.sendall(drop)
            time.sleep(0.05)

    return drip


@pytest.mark.parametrize(
    ("first", "drop"),
    [(HEAD + b"\r\n", b" "), (HEAD, b"x"), (HEAD, b"X-Y: z\r\n")],
    ids=["body", "head", "lines"],
)
def test_an_answer_that_never_ends_costs_its_time_and_no_more(
    first: bytes, drop: bytes, serve: Serve
) -> None:
    began = time.monotonic()
    with pytest.raises(OSError, match=r"did not answer within|no answer that can be read"):
        ask(serve(drips(first, drop)).address, seconds=1.0)
    assert time.monotonic() - began < 20


def test_an_answer_that_is_longer_than_allowed_is_not_kept(serve: Serve) -> None:
    server = serve(says(b"x" * 5_000))
    assert len(ask(server.address, most=5_000)) == 5_000
    with pytest.raises(OSError, match="more than 4,999 bytes"):
        ask(server.address, most=4_999)


@pytest.mark.parametrize("headers", [LOGIN, None])
def test_a_redirect_is_followed_without_credentials_alone(
    headers: dict[str, str] | None, serve: Serve
) -> None:
    other = serve(says(b"{}"))
    to_other = f"HTTP/1.1 302 Found\r\nLocation: {other.address}/\r\nContent-Length: 0\r\n\r\n".encode()
    server = serve(lambda connection: connection.sendall(to_other))
    if headers is None:
        assert ask(server.address) == b"{}"
        return
    with pytest.raises(OSError, match="302"):
        ask(server.address, headers=headers)
    with pytest.raises(Exception, match="302"):
        registry_schemas(server.address, "orders", headers)
    assert other.requests == [], "the login stays with the server that it is for"


def test_a_login_goes_through_no_proxy(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, server = serve(says(b"proxy")), serve(says(b"server"))
    monkeypatch.setenv("http_proxy", proxy.address)
    monkeypatch.delenv("no_proxy", raising=False)
    assert ask(server.address) == b"proxy"
    assert ask(server.address, b"hunter2", by_proxy=False) == b"server"
    assert [b"hunter2" in request for request in proxy.requests + server.requests] == [False, True]


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://127.0.0.1/x", "nonsense", "http://[::1"])
def test_what_is_no_address_of_a_page_is_not_asked(address: str) -> None:
    with pytest.raises(OSError, match=r"unknown url type|no answer"):
        ask(address)


DRIVER = "driver-20260101000000-0001"


def test_a_page_is_asked_only_if_the_connection_or_the_setting_names_it(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(says(b'{"completeddrivers": [{"id": "%s", "state": "FINISHED"}]}' % DRIVER.encode()))
    driver = ClusterDriver(server.address, DRIVER)
    for call in (cluster_drivers.ended, cluster_drivers.end, cluster_drivers.unbegun):
        with suppress(OSError):
            call(driver)
    assert server.requests == [], "a lease alone, which user code can write, sends no request anywhere"
    with pytest.raises(OSError, match="STREAMKEEPER_CLUSTER_PAGES"):
        cluster_drivers.end(driver)
    monkeypatch.setenv("STREAMKEEPER_CLUSTER_PAGES", f"http://other:8080,{server.address}/")
    assert cluster_drivers.ended(driver) == "FINISHED"


@pytest.mark.parametrize(
    "content",
    [b"[]", b"5", b"[" * 100_000, b'{"completeddrivers": 5}', b'{"completeddrivers": [{}]}', b"\xff"],
)
def test_a_page_of_another_shape_says_nothing(content: bytes, serve: Serve) -> None:
    server = serve(says(content))
    cluster_drivers.trust(server.address)
    assert cluster_drivers.ended_if_known(ClusterDriver(server.address, DRIVER)) is None
    assert cluster_drivers.ended_if_known(ClusterDriver(server.address, "no driver's id")) is None
    with pytest.raises(OSError):
        cluster_drivers.near_end(ClusterDriver(server.address, DRIVER), 10)


@pytest.mark.parametrize("page", ["file:///etc", "http://ada:hunter2@master:8080", "master:8080"])
def test_a_setting_of_pages_takes_addresses_without_logins(page: str) -> None:
    with pytest.raises(SettingsError, match="STREAMKEEPER_CLUSTER_PAGES") as refused:
        Settings.from_environment({"STREAMKEEPER_CLUSTER_PAGES": page})
    assert "hunter2" not in str(refused.value)
