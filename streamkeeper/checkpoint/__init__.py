"""Any Spark Structured Streaming checkpoint, read without a JVM and never changed.

Layout and formats are those of Spark 4.2 (``OffsetSeqLog``, ``CommitLog``, ``FileStreamSourceLog``).
``tests/spark/checkpoint/test_checkpoint_reader.py`` pins each part that the code relies on.
"""

from streamkeeper.checkpoint.damage import Problem
from streamkeeper.checkpoint.files_log import FilesLog
from streamkeeper.checkpoint.log_entries import (
    CommitEntry,
    FileEntry,
    OffsetEntry,
    StateOperator,
    write_commit,
    write_files_log,
    write_initial_offsets,
    write_offsets,
)
from streamkeeper.checkpoint.reader import Checkpoint

__all__ = [
    "Checkpoint",
    "CommitEntry",
    "FileEntry",
    "FilesLog",
    "OffsetEntry",
    "Problem",
    "StateOperator",
    "write_commit",
    "write_files_log",
    "write_initial_offsets",
    "write_offsets",
]
