"""Listings of S3 longer than a page, which has 1,000 names: each object once, in order, by a request a page.

The server is a real one, which Go builds at first, and keeps an object as a file of that path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from streamkeeper.storage import Storage, open_storage
from tests.worlds.sources.s3_proxy import Proxy, proxy
from tests.worlds.sources.s3_server import BUCKET, LOGIN, s3_server

pytestmark = pytest.mark.long

MANY, PAGES = 2300, 3
FLAT = [f"{number:04d}" for number in range(MANY)]
DEEP = [f"{name}/of" for name in FLAT]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, Storage]]:
    """A proxy that counts requests, and the storage behind it: ``flat`` has files, ``deep`` folders with one
    file each, and ``flat2`` is beside them.
    """
    with s3_server(tmp_path) as server, proxy(server) as network:
        for folder, names in (("flat", FLAT), ("deep", DEEP), ("flat2", ["beside"])):
            for name in names:
                path = tmp_path / BUCKET / "state" / folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"1")
        for name, value in {**LOGIN, "AWS_ENDPOINT_URL": network.url}.items():
            monkeypatch.setenv(name, value)
        fsspec.filesystem("s3").clear_instance_cache()
        yield network, open_storage(f"s3://{BUCKET}/state")
        fsspec.filesystem("s3").clear_instance_cache()


Listing = Callable[[Storage], list[str]]
CASES: dict[str, tuple[Listing, list[str]]] = {
    "names of files": (lambda s: s.names("flat"), FLAT),
    "names of folders": (lambda s: s.names("deep"), FLAT),
    "sizes of files": (lambda s: list(s.sizes("flat")), FLAT),
    "sizes at any depth": (lambda s: list(s.sizes("deep")), DEEP),
}


def test_a_listing_of_several_pages_has_each_object_once_in_order(store: tuple[Proxy, Storage]) -> None:
    network, storage = store
    for case, (listing, expected) in CASES.items():
        network.requests.clear()
        assert listing(storage) == expected, case
        assert ["list-type" in request for request in network.requests] == [True] * PAGES, case


@pytest.mark.parametrize("folder", ["flat", "deep"])
def test_a_folder_of_several_pages_is_removed_whole_a_page_a_request(
    store: tuple[Proxy, Storage], folder: str
) -> None:
    network, storage = store
    network.requests.clear()
    storage.remove(folder)
    asked = Counter(request.split()[0] for request in network.requests)
    assert asked == {"GET": PAGES, "POST": PAGES, "DELETE": 1}
    assert storage.names() == sorted({"deep", "flat", "flat2"} - {folder})
