"""The AUTO CDC engine: its result does not depend on the order, the batching or the repetition of changes."""

from streamkeeper.errors import ChangeRefused
from streamkeeper_jobs.cdc.apply_batch import apply_changes
from streamkeeper_jobs.cdc.columns import check_spec, target_schema
from streamkeeper_jobs.cdc.steps import Step, WriteLocked
from streamkeeper_jobs.cdc.table_schema import check_target, prepare

__all__ = [
    "ChangeRefused",
    "Step",
    "WriteLocked",
    "apply_changes",
    "check_spec",
    "check_target",
    "prepare",
    "target_schema",
]
