"""The AUTO CDC engine: changes of any order, cut into any batches and repeated at will, become one and the
same table.
"""

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
