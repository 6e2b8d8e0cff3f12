"""Size, protocol and metadata of a table's version, from the summary that Delta writes beside each commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamkeeper.delta import log as delta_log
from streamkeeper.errors import RequestError
from streamkeeper.storage import open_storage
from streamkeeper.support.json_values import parse

_APPEND_ONLY = "delta.appendOnly"
_EXPLICIT = "delta.identity.allowExplicitInsert"
"""Property of an identity column: false for GENERATED ALWAYS, true for BY DEFAULT. Others lack it."""
FORGETFUL = "delta.setTransactionRetentionDuration"
"""Property of a table by which Delta removes from its log which batches it has, after so long."""
MAPPED, UNMAPPED = "delta.columnMapping.mode", "none"
"""Property with a table's column mapping, and its value for none."""


@dataclass(frozen=True)
class Summary:
    """Summary of a table's version: its active files and their bytes; ``protocol`` and ``metadata`` as in the
    log.

    ``deleted`` is the number of rows that deletion vectors remove from these files; None if the writer does
    not record it.
    """

    version: int
    files: int
    bytes: int
    protocol: dict[str, Any]
    metadata: dict[str, Any]
    deleted: int | None = None

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The table's columns, as the log's ``schemaString`` has them."""
        return list(parse(self.metadata.get("schemaString") or "{}").get("fields", ()))


def read_summary(path: str, version: int) -> Summary | None:
    """Read a version's summary; None if it is missing or unreadable, as writers need not write one."""
    content = open_storage(path).read(f"_delta_log/{version:020d}.crc")
    if content is None:
        return None
    try:
        value = parse(content)
        deleted_records = value.get("numDeletedRecordsOpt")
        deleted = None if deleted_records is None else int(deleted_records)
        delta_log.check_action({"protocol": value["protocol"], "metaData": value["metadata"]})
        summary = Summary(
            version,
            int(value["numFiles"]),
            int(value["tableSizeBytes"]),
            value["protocol"],
            value["metadata"],
            deleted,
        )
        return summary if all(map(_is_field, summary.fields)) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_field(field: Any) -> bool:
    return isinstance(field, dict) and "name" in field and isinstance(field.get("metadata", {}), dict)


def newest_summary(path: str) -> Summary | None:
    """Read the summary of a table's newest version; None if there is no table, or no readable summary."""
    version = delta_log.latest_version(path)
    return None if version is None else read_summary(path, version)


def mapping_of(metadata: dict[str, Any]) -> str:
    """Return a table's column mapping from its metadata: ``name``, ``id`` or :data:`UNMAPPED`."""
    return str(metadata.get("configuration", {}).get(MAPPED, UNMAPPED))


def check_rows_may_go(path: str, metadata: dict[str, Any] | None = None) -> None:
    """Check that rows of a table may be removed or replaced.

    :param metadata: as in the log; that of the newest summary by default, if there is one.
    :raises RequestError: the table is append-only; nothing was touched.
    """
    if metadata is None:
        summary = newest_summary(path)
        metadata = {} if summary is None else summary.metadata
    if metadata.get("configuration", {}).get(_APPEND_ONLY) == "true":
        raise RequestError(
            f"{path} has the property {_APPEND_ONLY}, so no row of it can be replaced. Nothing was changed."
            " Unset the property (ALTER TABLE … UNSET TBLPROPERTIES), and plan again."
        )


def forgets_batches(path: str) -> str | None:
    """Return the property, with its value, by which a table forgets which batches it has; None if it has
    none, or no summary tells. Delta takes a batch that comes again after so long for a new one.
    """
    summary = newest_summary(path)
    found = {} if summary is None else summary.metadata.get("configuration", {})
    return f"{FORGETFUL}={found[FORGETFUL]}" if FORGETFUL in found else None


def columns_of(path: str) -> frozenset[str]:
    """Return the names of a table's columns, in lower case, by the newest summary; none if there is none."""
    summary = newest_summary(path)
    return frozenset(str(field["name"]).lower() for field in (summary.fields if summary else ()))


def check_takes_backup_rows(path: str) -> None:
    """Check that rows of a backup can be appended to a table with their values, by the newest summary, if
    there is one.

    :raises RequestError: an identity column accepts only values that Delta generates; nothing was touched.
    """
    summary = newest_summary(path)
    for field in summary.fields if summary else ():
        if field.get("metadata", {}).get(_EXPLICIT) is False:
            raise RequestError(
                f"{path} has the column {field['name']}, GENERATED ALWAYS AS IDENTITY: Delta gives its values"
                " and takes none, but the rows of a backup bring theirs. Nothing was changed. Fill the table"
                " from its flows' sources; or put the backup back with restore_table, which keeps the values."
            )


def check_may_become(path: str, present: dict[str, Any], replacement: dict[str, Any]) -> None:
    """Check that one commit of Delta can turn a table into another one, a backup of it.

    :param present: metadata of the table, as in its log.
    :param replacement: metadata of the other.
    :raises RequestError: Delta does not allow it; nothing was touched.
    """
    check_rows_may_go(path, present)
    has, gets = mapping_of(present), mapping_of(replacement)
    if gets not in (has, UNMAPPED):
        raise RequestError(
            f"{path} has {MAPPED}={has}, and the backup has {MAPPED}={gets}; Delta lets no commit that"
            f" replaces a table change that. Nothing was changed. Set it to {gets} (ALTER TABLE … SET"
            " TBLPROPERTIES), and plan again."
        )
