"""Every error raised on purpose; its message says what was found, what is allowed, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from streamkeeper.redaction import redact_text

MOST_SHOWN = 64 * 1024
"""Characters of an error's message that are shown."""


class StreamkeeperError(Exception):
    """Root of the tree. Its message is written for the user and never shows a secret."""

    def __str__(self) -> str:
        """Return the message without secrets, cut to :data:`MOST_SHOWN` characters."""
        message = super().__str__()
        more = len(message) - MOST_SHOWN
        return redact_text(
            message if more <= 0 else f"{message[:MOST_SHOWN]}… ({more:,} characters more are left out)"
        )


class UsageError(StreamkeeperError):
    """A request or declaration that is not possible; nothing was touched. The command line ends with 2."""


class DeclarationError(UsageError):
    """A declaration in a pipeline file that is not allowed; the message names file and line."""


class NotOffered(DeclarationError):
    """A pipeline file that is not offered here: the environment lacks something that the file requires."""


class SettingsError(UsageError):
    """An environment variable with an unusable value."""


class RequestError(UsageError):
    """A recovery's request with values that do not fit; the message lists all of them, not only the first.

    :param misfits: one sentence for each value that does not fit; empty if the message says it all.
    """

    def __init__(self, message: str, misfits: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.misfits = tuple(misfits)


class TableUnfit(UsageError):
    """A table that its flows cannot go on with, since others put back, copied or cut it; nothing was touched.
    The message says what was found in its log, and which recovery helps.
    """


class CheckpointError(StreamkeeperError):
    """A checkpoint, or one file of it, that cannot be read; the message names the file and the damage."""


class NewerCheckpoint(CheckpointError):
    """A checkpoint with a file of a version that this Spark cannot read: a newer one wrote it."""


class SinkDisagrees(CheckpointError):
    """A checkpoint that contradicts the table of its query: one is an older copy or was replaced."""


class RowsOfOthers(StreamkeeperError):
    """A table with rows that none of its flows wrote, to which a flow would add all that its sources have."""


class StorageError(StreamkeeperError):
    """A state folder that cannot be read or written."""


class FileTooLarge(StorageError):
    """A file that is larger than one of its kind can be, and was not read."""


class SourceError(StreamkeeperError):
    """A source that cannot be inspected now, such as one whose broker does not answer. A retry may help."""


class CatalogError(StreamkeeperError):
    """A session catalog that does not answer now, or refuses what it was asked; a retry may help."""


class NotAskable(SourceError):
    """A source that cannot be inspected from this process: a package, a variable or a JVM is missing."""


class FlowHeld(StreamkeeperError):
    """A hold keeps the flow from running."""


class LeaseHeld(StreamkeeperError):
    """Another driver has the flow's lease and may be alive."""


class LeaseLost(StreamkeeperError):
    """Another driver took the lease over; this one must stop."""


class ExecutorsGone(StreamkeeperError):
    """No executor computes a driver's batch; the next driver registers with the cluster anew."""


class TableLocked(StreamkeeperError):
    """Another recovery has the table's lock."""


class ChangeRefused(StreamkeeperError):
    """A batch with rows that an AUTO CDC flow cannot apply, such as rows without a key; none was written."""


class RecoveryError(StreamkeeperError):
    """A step of a recovery that could not be carried out; running the recovery again resumes at that step."""


class PlanRefused(StreamkeeperError):
    """A plan whose impact was not accepted; nothing was touched."""


class ApprovalRefused(PlanRefused):
    """An approval by somebody who may not give it; nothing was touched."""


LONGEST_REASON = 2_000
"""Characters that a person's reason may have."""


def check_reason(reason: object) -> None:
    """Check the length of a person's reason.

    :raises RequestError: it is longer than :data:`LONGEST_REASON` characters.
    """
    if isinstance(reason, str) and len(reason) > LONGEST_REASON:
        raise RequestError(
            f"The reason has {len(reason):,} characters. Allowed are {LONGEST_REASON:,}. Shorten it."
        )
