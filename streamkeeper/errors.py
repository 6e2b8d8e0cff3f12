"""Every error that Streamkeeper raises on purpose.

    StreamkeeperError
    ├── UsageError              what was asked for cannot be asked for: nothing was touched (exit 2)
    │   ├── DeclarationError    a pipeline file says something that is not allowed
    │   │   └── NotOffered      a pipeline file says that it is not for this environment
    │   ├── SettingsError       an environment variable has an unusable value
    │   └── RequestError        a recovery was asked for with values that do not fit the flow
    ├── CheckpointError         a checkpoint cannot be read as one
    │   └── SinkDisagrees       a checkpoint and the table behind it cannot both be right
    ├── StorageError            the state folder cannot be read or written
    ├── SourceError             a source cannot be looked at now: it does not answer, or is not there
    │   └── NotAskable          a source cannot be looked at from here, whatever its state
    ├── FlowHeld                a hold forbids the flow to run
    ├── LeaseHeld               another driver has the flow's lease
    ├── LeaseLost               another driver took the lease over
    ├── TableLocked             another recovery works on the table
    ├── ChangeRefused           a batch of changes holds rows that no AUTO CDC flow can apply
    ├── RecoveryError           a recovery's step cannot be carried out; it may be run again
    └── PlanRefused             the plan's price was not accepted, so nothing was touched

Each message says what was found, what is allowed, and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamkeeper.redaction import redact_text

MOST_SAID = 64 * 1024
"""Characters that are shown of an error."""


class StreamkeeperError(Exception):
    """The root of the tree: an error whose message is meant for the user as it stands, wherever it is shown:
    without secrets.
    """

    def __str__(self) -> str:
        """Give the message without secrets, and not longer than anybody reads."""
        said = super().__str__()
        more = len(said) - MOST_SAID
        return redact_text(
            said if more <= 0 else f"{said[:MOST_SAID]}… ({more:,} characters more are left out)"
        )


class UsageError(StreamkeeperError):
    """What was asked for cannot be asked for; nothing was touched."""


class DeclarationError(UsageError):
    """A pipeline file declares something that is not allowed; the message names file and line."""


class NotOffered(DeclarationError):
    """A pipeline file says that it is offered only where the environment has something that it has not
    here.
    """


class SettingsError(UsageError):
    """An environment variable has a value that cannot be used."""


class RequestError(UsageError):
    """A recovery was asked for with values that do not fit; the message lists every misfit, not only the
    first.

    :param misfits: a sentence for each; none where the message is all there is to say.
    """

    def __init__(self, message: str, misfits: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.misfits = tuple(misfits)


class CheckpointError(StreamkeeperError):
    """A checkpoint, or one file of it, cannot be read; the message names the file and what is wrong with
    it.
    """


class SinkDisagrees(CheckpointError):
    """A checkpoint and the table that its query writes cannot both be right: one of them is an older copy, or
    was replaced.
    """


class StorageError(StreamkeeperError):
    """The state folder cannot be read or written."""


class SourceError(StreamkeeperError):
    """A source cannot be looked at now: its broker does not answer, or its topic is not there. Another try
    may go better.
    """


class NotAskable(SourceError):
    """A source cannot be looked at from here, whatever its state: a package, a variable or a JVM is
    missing.
    """


class FlowHeld(StreamkeeperError):
    """A hold forbids the flow to run."""


class LeaseHeld(StreamkeeperError):
    """Another driver has the lease of the flow and may be alive."""


class LeaseLost(StreamkeeperError):
    """Another driver has taken the lease over: this one must stop."""


class TableLocked(StreamkeeperError):
    """Another recovery has the table's lock."""


class ChangeRefused(StreamkeeperError):
    """A batch of an AUTO CDC flow holds rows that cannot be applied, such as ones without a key; nothing of
    the batch was written.
    """


class RecoveryError(StreamkeeperError):
    """A step of a recovery could not be carried out; running the recovery again goes on from that step."""


class PlanRefused(StreamkeeperError):
    """The plan has a price that nobody accepted; nothing was touched."""


LONGEST_REASON = 2_000
"""Characters of a reason that a person gives."""


def check_reason(reason: object) -> None:
    """Make sure that a reason is one to read.

    :raises RequestError: it is longer than a reason may be.
    """
    if isinstance(reason, str) and len(reason) > LONGEST_REASON:
        raise RequestError(
            f"The reason has {len(reason):,} characters. Allowed are {LONGEST_REASON:,}. Say it shorter, and"
            " put what is longer elsewhere."
        )
