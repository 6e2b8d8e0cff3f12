"""Posts the events of the tables' assets, by which a stream schedules batch DAGs.

A task posts events of its own outlets when it succeeds, without a token and without Airflow's API. The
flows' tasks have the outlets, for Airflow's graph of assets. This task alone posts: it has those outlets for
which an event is due, and no other.
"""

from __future__ import annotations

import traceback
from functools import partial

from airflow.sdk import Asset, BaseOperator, Context
from airflow.sdk.execution_time.context import InletEventsAccessor

from streamkeeper.errors import StreamkeeperError
from streamkeeper.flows.files import storage_now
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.redaction import redact_text
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper.watch.asset_events import MOST_PARTITIONS, AssetEvent, asset_tables, next_event
from streamkeeper_airflow.table_asset import table_asset


class PostAssetEvents(BaseOperator):
    """Posts the asset event of each table for which one is due (:mod:`streamkeeper.watch.asset_events`)."""

    def execute(self, context: Context) -> None:
        """Look at each table. A table that cannot be read is only said here: a task that fails posts nothing,
        and the look at the flows fails for it anyway.

        :raises StorageError: the state folder cannot be read or written.
        """
        self.outlets = []  # each of them gets an event
        settings = Settings.from_environment()
        storage = open_storage(settings.state)
        now = storage_now(storage)
        for table in asset_tables(settings, read_manifest(settings)):
            asset = table_asset(table.name)
            try:
                event = next_event(storage, table, now, partial(is_posted, asset))
            except StreamkeeperError as error:
                self.log.error("What is new in %s cannot be told: %s", table.name, error)
            except Exception:  # noqa: BLE001 - whatever is wrong in one table, the others' events are posted
                self.log.error(
                    "What is new in %s cannot be told:\n%s", table.name, redact_text(traceback.format_exc())
                )
            else:
                if event is not None:
                    self._post(context, asset, event)

    def _post(self, context: Context, asset: Asset, event: AssetEvent) -> None:
        self.outlets.append(asset)
        outlet = context["outlet_events"][asset]
        outlet.extra = dict(event.extra)
        outlet.add_partitions(list(event.partitions))
        self.log.info("%s: %s %s", asset.uri, event.extra, " ".join(event.partitions))


def is_posted(asset: Asset, event_id: str) -> bool:
    """Return whether Airflow has the event of an id, among the newest of an asset."""
    events = InletEventsAccessor(asset_name=asset.name, asset_uri=asset.uri)
    newest = events.ascending(False).limit(MOST_PARTITIONS)
    return any((event.extra or {}).get("id") == event_id for event in newest)
