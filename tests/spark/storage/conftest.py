"""A real S3 server for the tests of this folder."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer

from tests.worlds.sources.s3_proxy import Proxy, proxy
from tests.worlds.sources.s3_server import BUCKET, s3_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server's ``host:port``."""
    with s3_server(tmp_path_factory.mktemp("s3")) as found:
        yield found


@pytest.fixture
def disobedient() -> Iterator[Proxy]:
    """A store that does not know ``If-None-Match``: versitygw would miss the header in the signature, which
    moto does not look at.
    """
    store = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    store.start()
    host, port = store.get_host_and_port()
    with proxy(f"{host}:{port}") as found:
        urllib.request.urlopen(urllib.request.Request(f"{found.url}/{BUCKET}", method="PUT")).close()
        found.ignores_conditions = True
        yield found
    store.stop()
