"""How large a version of a table is, by the summary that Delta writes beside each commit. No JVM is started,
and no file listed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from streamkeeper.delta import log as delta_log
from streamkeeper.errors import RequestError
from streamkeeper.storage import open_storage

_APPEND_ONLY = "delta.appendOnly"
_EXPLICIT = "delta.identity.allowExplicitInsert"
"""Which an identity column says of itself in the schema: GENERATED ALWAYS is false, BY DEFAULT true. Other
columns say nothing.
"""
MAPPED, UNMAPPED = "delta.columnMapping.mode", "none"
"""Under which a table says how its columns are mapped, and what it is without."""


@dataclass(frozen=True)
class Summary:
    """What a version of a table comes to: its active files and their bytes; ``protocol`` and ``metadata`` as
    they stand in the log.

    ``deleted`` are the rows of these files that deletion vectors take away; None where the writer does not
    say.
    """

    version: int
    files: int
    bytes: int
    protocol: dict[str, Any]
    metadata: dict[str, Any]
    deleted: int | None = None


def read_summary(path: str, version: int) -> Summary | None:
    """Read a version's summary; None where there is none that can be read: it is a convenience of the
    writer's.
    """
    content = open_storage(path).read(f"_delta_log/{version:020d}.crc")
    if content is None:
        return None
    try:
        value = json.loads(content)
        told = value.get("numDeletedRecordsOpt")
        deleted = None if told is None else int(told)
        return Summary(
            version,
            int(value["numFiles"]),
            int(value["tableSizeBytes"]),
            value["protocol"],
            value["metadata"],
            deleted,
        )
    except (ValueError, KeyError, TypeError):
        return None


def newest_summary(path: str) -> Summary | None:
    """Read the summary of a table's newest version; None where there is no table, or none that can be
    read.
    """
    version = delta_log.latest_version(path)
    return None if version is None else read_summary(path, version)


def mapping_of(metadata: dict[str, Any]) -> str:
    """Give how a table maps its columns, by its metadata as in the log: ``name``, ``id`` or
    :data:`UNMAPPED`.
    """
    return str(metadata.get("configuration", {}).get(MAPPED, UNMAPPED))


def check_rows_may_go(path: str, metadata: dict[str, Any] | None = None) -> None:
    """Make sure that rows of a table can be removed or replaced.

    :param metadata: as in its log; that of its newest summary by default, if there is one.
    :raises RequestError: they cannot; nothing was touched.
    """
    if metadata is None:
        summary = newest_summary(path)
        metadata = {} if summary is None else summary.metadata
    if metadata.get("configuration", {}).get(_APPEND_ONLY) == "true":
        raise RequestError(
            f"{path} has the property {_APPEND_ONLY}, so no row of it can be replaced. Nothing was touched."
            " Unset the property (ALTER TABLE … UNSET TBLPROPERTIES), and plan again."
        )


def check_takes_backup_rows(path: str) -> None:
    """Make sure that rows can be appended to a table with the values that they have in a backup, by its
    newest summary, if there is one.

    :raises RequestError: a column takes no value but those that Delta gives; nothing was touched.
    """
    summary = newest_summary(path)
    schema = json.loads(summary.metadata.get("schemaString") or "{}") if summary is not None else {}
    for field in schema.get("fields", ()):
        if field.get("metadata", {}).get(_EXPLICIT) is False:
            raise RequestError(
                f"{path} has the column {field['name']}, GENERATED ALWAYS AS IDENTITY: Delta gives its values"
                " and takes none, but the rows of a backup bring theirs. Nothing was touched. Fill the table"
                " from its flows' sources; or put the backup back with restore_table, which keeps the"
                " values."
            )


def check_may_become(path: str, present: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Make sure that Delta lets a table become, in one commit, what another is: a backup of it.

    :param present: the table's metadata as in its log, and ``wanted`` that of the other.
    :raises RequestError: it does not; nothing was touched.
    """
    check_rows_may_go(path, present)
    has, gets = mapping_of(present), mapping_of(wanted)
    if gets not in (has, UNMAPPED):
        raise RequestError(
            f"{path} has {MAPPED}={has}, and the backup has {MAPPED}={gets}; Delta lets no commit that"
            f" replaces a table change that. Nothing was touched. Set it to {gets} (ALTER TABLE … SET"
            " TBLPROPERTIES), and plan again."
        )
