from pyspark.sql import DataFrame
from streamkeeper.cdc import CdcSpec
from streamkeeper_jobs.cdc.steps import CdcTables, Step, Turn
def apply_changes(batch: DataFrame, spec: CdcSpec, tables: CdcTables, step: Step, turn: Turn) -> None: raise NotImplementedError
