"""Asking other servers: a bounded answer in bounded time, and credentials for nobody but who was asked."""

from __future__ import annotations

import http.client
import io
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

ANSWER = 5.0
"""Seconds that a server may take for its whole answer."""
_SAID = 64 * 1024
"""Bytes that are read of the answer that comes with an error status."""
MOST = 64 * 2**20
"""Bytes that an answer may have."""


def ask(
    address: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    method: str | None = None,
    seconds: float = ANSWER,
    most: int = MOST,
    by_proxy: bool = True,
) -> bytes:
    """Return what an address of ``http`` or ``https`` answers.

    A request with headers, which may be credentials, follows no redirect.

    :param by_proxy: whether the environment's ``http_proxy`` may see the request.
    :raises OSError: no answer in time, a longer one, an error status (:class:`urllib.error.HTTPError`), or an
        address of another kind.
    """
    clock = _Clock(seconds)
    try:
        request = urllib.request.Request(address, body, dict(headers or {}), method=method)
        handlers: list[urllib.request.BaseHandler] = [
            urllib.request.ProxyHandler(None if by_proxy else {}),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.UnknownHandler(),
            _Http(clock),
            _Https(clock),
            *(() if headers else (urllib.request.HTTPRedirectHandler(),)),
        ]
        opener = urllib.request.OpenerDirector()
        for handler in handlers:
            opener.add_handler(handler)
        with opener.open(request, timeout=seconds) as answer:
            content: bytes = answer.read(most + 1)
    except (http.client.HTTPException, ValueError) as error:
        clock.check(address)
        raise OSError(f"{address} gives no answer that can be read: {error!r}") from error
    except urllib.error.HTTPError as error:
        said = io.BytesIO(error.read(_SAID))
        raise urllib.error.HTTPError(address, error.code, error.msg, error.headers, said) from error
    except OSError:
        clock.check(address)
        raise
    finally:
        clock.stop()
    clock.check(address)
    if len(content) > most:
        raise OSError(f"{address} answers with more than {most:,} bytes; no more are read.")
    return content


class _Clock:
    """Ends a request's connections when its time is over: single reads may go on for ever."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._until = seconds, time.monotonic() + seconds
        self._timers: list[threading.Timer] = []

    def watch(self, connection: socket.socket) -> None:
        timer = threading.Timer(max(0.0, self._until - time.monotonic()), _end, [connection])
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def check(self, address: str) -> None:
        if time.monotonic() >= self._until:
            raise TimeoutError(f"{address} did not answer within {self._seconds:g} s.")

    def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()


def _end(connection: socket.socket) -> None:
    with suppress(OSError):  # it is over already
        # A TLS socket's own shutdown would first say goodbye, for which the other side is not waited.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _watched(connection_type: type[Any], clock: _Clock, *arguments: Any, **named: Any) -> Any:
    """Make a connection of urllib's that the clock watches from its beginning."""
    connection = connection_type(*arguments, **named)
    connect = connection.connect

    def connect_and_watch() -> None:
        connect()
        clock.watch(connection.sock)

    connection.connect = connect_and_watch
    return connection


class _Http(urllib.request.HTTPHandler):
    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self._clock = clock

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_watched, http.client.HTTPConnection, self._clock), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self._clock = clock

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_watched, http.client.HTTPSConnection, self._clock), req)
