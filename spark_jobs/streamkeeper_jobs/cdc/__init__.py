"""The AUTO CDC engine: its result does not depend on the order, the batching or the repetition of changes."""

from streamkeeper.errors import ChangeRefused
from streamkeeper_jobs.cdc.apply_batch import apply_changes
from streamkeeper_jobs.cdc.columns import check_spec, target_schema
from streamkeeper_jobs.cdc.steps import CdcTables, Step, Turn, app_ids
from streamkeeper_jobs.cdc.table_schema import check_tables, prepare

__all__ = [
    "CdcTables",
    "ChangeRefused",
    "Step",
    "Turn",
    "app_ids",
    "apply_changes",
    "check_spec",
    "check_tables",
    "prepare",
    "target_schema",
]
