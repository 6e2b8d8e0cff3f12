"""The Spark steps of ``restore_table``: check the copy, restore the table in one commit, verify its rows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from streamkeeper.delta import log as delta_log
from streamkeeper.delta import remembered
from streamkeeper.delta.summary import check_may_become
from streamkeeper.errors import RecoveryError
from streamkeeper.recover.moves import put_back as put_backs
from streamkeeper.recover.moves.put_back import TableToRestore, VersionToRestore
from streamkeeper.recover.plans.kind import Work
from streamkeeper.recover.plans.plan import Plan
from streamkeeper.recover.steps import shared as shared_steps
from streamkeeper.tables import past_versions
from streamkeeper.tables.backups import Checksum
from streamkeeper_jobs.recover.backup_table import describe, make_table, read_checksum, read_version
from streamkeeper_jobs.recover.rewind import fence_flows
from streamkeeper_jobs.recover.rewind import put_back as put_version_back
from streamkeeper_jobs.spark.delta_snapshot import (
    JsonObject,
    Snapshot,
    read_metadata,
    read_snapshot,
    snapshot_of,
)
from streamkeeper_jobs.spark.delta_table import action_of, commit, delta_log_of, last_written
from streamkeeper_jobs.spark.jvm import classes, scala_seq
from streamkeeper_jobs.spark.log import say

_FEED = "delta.enableChangeDataFeed"
_ROW_TRACKING = "delta.rowTracking"
_OF_ROWS = ("baseRowId", "defaultRowCommitVersion")
"""Fields of a file's row ids. They are assigned again, since the table's own counter has advanced."""


@dataclass(frozen=True)
class _Checked:
    """What ``check_copy`` and ``verify_rows`` read."""

    checksum: Checksum


def check_copy(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Compare what is to be restored with the catalog, before anything is changed.

    Check also that Delta will accept it.

    :raises RecoveryError: it differs from its catalog entry; nothing was changed.
    :raises RequestError: Delta would refuse it; nothing was changed.
    """
    table = put_backs.table_of(shared_steps.plan_under_hold(work))
    _check_replaceable(spark, table)
    checked = read_checksum(read_version(spark, table.source, table.from_version), table.source)
    if table.checksum is not None:
        then = "Nothing was changed. Restore another backup."
        _compare(table.source, checked, table.checksum, then)
    return asdict(_Checked(checked))


def put_back(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Restore the table in one commit, which carries the recovery's id; do nothing if it has this commit.

    :raises RecoveryError: something was written to it since the plan was made under the hold; it was not
        restored.
    """
    shared_steps.check_go(work)
    plan = shared_steps.plan_under_hold(work)
    put_backs.check_unchanged(work, plan, put_backs.once_decided(plan))
    fence_flows(spark, work, plan)
    return _put_back(spark, work, plan, put_backs.table_of(plan))


def verify_rows(spark: SparkSession, work: Work) -> dict[str, Any]:
    """Compare the rows of the restored table with what was restored.

    :raises RecoveryError: they differ; the flows stay held.
    """
    table = put_backs.table_of(shared_steps.plan_under_hold(work))
    checked = read_checksum(read_version(spark, table.path), table.path)
    then = "The flows stay held. Restore another backup."
    _compare(table.path, checked, work.result("check_copy", _Checked).checksum, then)
    return asdict(_Checked(checked))


def _check_replaceable(spark: SparkSession, table: TableToRestore) -> None:
    """Check that Delta lets a backup replace the table, if the table exists.

    RESTORE to one of the table's own versions refuses nothing.
    """
    if table.is_backup and delta_log.exists(table.path):
        source_metadata = read_metadata(spark, table.source, table.from_version)
        check_may_become(table.path, read_metadata(spark, table.path), source_metadata)


def _compare(path: str, actual: Checksum, expected: Checksum, then: str) -> None:
    if actual != expected:
        raise RecoveryError(f"{path} has {describe(actual)}; its entry says {describe(expected)}. {then}")
    say(f"{path}: {describe(actual)}, as listed.")


def _put_back(spark: SparkSession, work: Work, plan: Plan, table: TableToRestore) -> JsonObject:
    if not table.is_backup:
        assert table.newest is not None, "a version is restored of a table that is there"
        back = VersionToRestore(table.path, table.from_version, table.newest)
        return next(put_version_back(spark, work, plan, [back]))
    put_backs.bring(work, table)
    evidence = {"path": table.path, **_put_backup_back(spark, work, plan, table)}
    # Again: a VACUUM that began earlier may have removed files before the commit referenced them.
    put_backs.bring(work, table)
    return evidence


def _put_backup_back(spark: SparkSession, work: Work, plan: Plan, table: TableToRestore) -> JsonObject:
    path, before = table.path, delta_log.latest_version(table.path)
    put_backs.written_late(work, plan, path, table.newest, put_backs.once_decided(plan))
    backup = read_snapshot(spark, table.source, table.from_version)
    app_id = past_versions.app_id(plan.recovery_id, past_versions.PUT_BACK)
    if before is None:
        parameters = {
            "source": table.source,
            "sourceVersion": str(backup.version),
            "recovery": plan.recovery_id,
        }
        make_table(path, backup, parameters, _transaction(app_id))
        return {"version_before": None, "version": 0, "made": True}
    numbers = replace_table(spark, path, backup, app_id)
    return {"version_before": before, **numbers, "version": delta_log.latest_version(path), "made": False}


def replace_table(
    spark: SparkSession, path: str, replacement: Snapshot, app_id: str, others: Iterable[JsonObject] = ()
) -> JsonObject:
    """Replace a table's content by a snapshot whose files are in its folder, unless ``app_id`` has done so.

    :param others: further actions of that commit.
    :raises RecoveryError: Delta refuses it; nothing was changed.
    """
    numbers: JsonObject = {}
    if last_written(spark, path, app_id) is None:
        numbers = replace_content(spark, path, replacement, app_id, others)
        say(f"{path} was replaced: {numbers['added']:,} files added, {numbers['removed']:,} removed.")
    _turn_feed_on(spark, path, replacement)
    return numbers


def replace_content(
    spark: SparkSession, path: str, replacement: Snapshot, app_id: str, others: Iterable[JsonObject] = ()
) -> dict[str, int]:
    """Replace a table's content, in one commit of (``app_id``, 1), by that of a snapshot.

    The snapshot's files are in the table's folder.

    The table keeps its id and its history. Files that both have stay as they are, so that readers of changes
    do not see them. Delta lets no commit change rows and also drop or rename columns of a table with a change
    data feed. There the feed is off afterwards (see :func:`_turn_feed_on`): no reader of it could have
    continued anyway.

    :raises RecoveryError: Delta refuses it; nothing was changed.
    """
    transaction, present = _begin(spark, path)
    actions = [*_changed_files(present, replacement), *_domains(present, replacement)]
    actions += [*others, _transaction(app_id)]
    metadata = _metadata(present, replacement)
    if _has_feed(replacement) and metadata["schemaString"] != present.metadata["schemaString"]:
        metadata = {**metadata, "configuration": {**metadata["configuration"], _FEED: "false"}}
    try:
        _commit(spark, transaction, replace(replacement, metadata=metadata), actions)
    except (Py4JError, PySparkException) as error:
        raise RecoveryError(
            f"Delta refused to replace what {path} holds, and nothing was changed: {str(error)[:1500]}"
        ) from error
    return {
        "added": sum("add" in action for action in actions),
        "removed": sum("remove" in action for action in actions),
    }


def _transaction(app_id: str) -> JsonObject:
    return {"txn": {"appId": app_id, "version": 1, "lastUpdated": int(time.time() * 1000)}}


def _turn_feed_on(spark: SparkSession, path: str, replacement: Snapshot) -> None:
    """Turn the change data feed on again, if it was turned off for the restore."""
    transaction, present = _begin(spark, path)
    if _has_feed(replacement) and not _has_feed(present):
        _commit(spark, transaction, replace(replacement, metadata=_metadata(present, replacement)), [])


def _has_feed(snapshot: Snapshot) -> bool:
    return bool(snapshot.metadata.get("configuration", {}).get(_FEED) == "true")


def _metadata(present: Snapshot, replacement: Snapshot) -> JsonObject:
    """Return the wanted metadata with the table's own id, by which its readers know it."""
    own: JsonObject = {
        name: present.metadata[name] for name in ("id", "createdTime") if name in present.metadata
    }
    return {**replacement.metadata, **own}


def _begin(spark: SparkSession, path: str) -> tuple[Any, Snapshot]:
    """Begin a transaction and read its snapshot.

    At the commit, Delta checks everything that others committed since against it.
    """
    transaction = delta_log_of(spark, path).startTransaction()
    return transaction, snapshot_of(spark, transaction.snapshot())


def _commit(
    spark: SparkSession, transaction: Any, replacement: Snapshot, actions: Iterable[JsonObject]
) -> None:
    java = classes(spark)
    protocol = action_of(java, {"protocol": replacement.protocol})
    transaction.updateProtocol(transaction.protocol().merge(scala_seq(java, [protocol])))
    transaction.updateMetadataForTableOverwrite(action_of(java, {"metaData": replacement.metadata}))
    commit(java, transaction, (action_of(java, action) for action in actions))


def _changed_files(present: Snapshot, replacement: Snapshot) -> Iterator[JsonObject]:
    present_files, needed = _by_file(present), _by_file(replacement)
    moment = int(time.time() * 1000)
    for key, add in present_files.items():
        if key not in needed:
            fields = {
                name: add[name]
                for name in ("path", "partitionValues", "size", "deletionVector", "tags", *_OF_ROWS)
                if name in add
            }
            gone = {"deletionTimestamp": moment, "dataChange": True, "extendedFileMetadata": True}
            yield {"remove": {**fields, **gone}}
    for key, add in needed.items():
        if key not in present_files:
            yield {"add": {name: value for name, value in add.items() if name not in _OF_ROWS}}


def _by_file(snapshot: Snapshot) -> dict[tuple[str, str], JsonObject]:
    """Map files by what identifies them: the path and the deletion vector."""
    return {
        (add["path"], json.dumps(add.get("deletionVector"), sort_keys=True)): add for add in snapshot.adds
    }


def _domains(present: Snapshot, replacement: Snapshot) -> Iterator[JsonObject]:
    """Yield the actions that restore the table's domains, such as its clustering; row ids keep counting."""
    present_domains, needed = _named(present), _named(replacement)
    for name, domain in present_domains.items():
        if name not in needed and name != _ROW_TRACKING:
            yield {"domainMetadata": {**domain, "removed": True}}
    own, since = str(present.metadata["id"]), present.version
    for name, domain in needed.items():
        if name != _ROW_TRACKING and (present_domains.get(name) != domain or name == remembered.DOMAIN):
            yield remembered.moved({"domainMetadata": domain}, own, since)


def _named(snapshot: Snapshot) -> dict[str, JsonObject]:
    domains = (action["domainMetadata"] for action in snapshot.others if "domainMetadata" in action)
    return {domain["domain"]: domain for domain in domains}
