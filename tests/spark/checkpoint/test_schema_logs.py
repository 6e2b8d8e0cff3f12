"""The log of a Delta source's schemas goes along when a checkpoint is copied, and names the new one."""

from __future__ import annotations

from pathlib import Path

from streamkeeper.checkpoint import Checkpoint, CommitEntry, OffsetEntry, write_commit, write_offsets
from streamkeeper.delta.history import offset_before
from streamkeeper.storage import LocalStorage


def test_the_log_of_schemas_is_copied_with_the_checkpoint_and_names_its_new_folder(tmp_path: Path) -> None:
    from streamkeeper_jobs.generation.copy_checkpoint import copy_checkpoint

    storage = LocalStorage(str(tmp_path))
    log = "sources/raw/_schema_log_an-id"
    noted = f'v1\n{{"sourceMetadataPath":"file:{tmp_path}/checkpoints/1/sources/raw","tableId":"an-id"}}'
    storage.overwrite("checkpoints/1/metadata", b'{"id":"q"}')
    storage.overwrite(
        "checkpoints/1/offsets/0",
        write_offsets(OffsetEntry(0, 2, 0, 0, {}, {"raw": offset_before("an-id", 3)})),
    )
    storage.overwrite("checkpoints/1/commits/0", write_commit(CommitEntry(0, 1, 0)))
    storage.overwrite(f"checkpoints/1/{log}/0", noted.encode())
    storage.overwrite(f"checkpoints/1/{log}/.0.crc", b"crc")
    copy_checkpoint(Checkpoint(storage, "checkpoints/1"), 0, "checkpoints/2", "another", lambda: None)
    assert (
        storage.read(f"checkpoints/2/{log}/0") == noted.replace("/checkpoints/1/", "/checkpoints/2/").encode()
    )
    assert storage.names(f"checkpoints/2/{log}") == ["0"]
    assert Checkpoint(storage, "checkpoints/2").problems() == ()
