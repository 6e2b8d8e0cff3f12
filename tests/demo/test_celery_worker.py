"""The worker of docker-compose.yaml waits for a store that is a server, and for no folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.airflow import celery_worker
from streamkeeper.errors import StorageError
from tools.waiting import NeverCame


class Store:
    """A store that refuses some looks, and counts them."""

    def __init__(self, refuses: int) -> None:
        self.refuses, self.looks = refuses, 0

    def names(self) -> list[str]:
        self.looks += 1
        if self.looks <= self.refuses:
            raise StorageError("it does not answer")
        return []


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(celery_worker, "STORE_SECONDS", 1.2)
    return monkeypatch


@pytest.mark.parametrize(("state", "looks"), [("s3://bucket/state", 2), ("{folder}", 0)])
def test_a_server_is_waited_for_and_a_folder_is_not(
    state: str, looks: int, patient: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = Store(refuses=1)
    patient.setattr(celery_worker, "open_storage", lambda _: store)
    celery_worker.await_store(state.format(folder=tmp_path))
    assert store.looks == looks


def test_a_server_that_never_answers_ends_the_worker(patient: pytest.MonkeyPatch) -> None:
    patient.setattr(celery_worker, "open_storage", lambda _: Store(refuses=99))
    with pytest.raises(NeverCame, match=r"s3://bucket/state answers.*it does not answer"):
        celery_worker.await_store("s3://bucket/state")
