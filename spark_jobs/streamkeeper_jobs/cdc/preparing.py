from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from streamkeeper.cdc import CdcSpec
from streamkeeper.declarations import Table
from streamkeeper_jobs.cdc.steps import CdcTables, Turn
def prepare(spark: SparkSession, schema: StructType, spec: CdcSpec, tables: CdcTables, table: Table, turn: Turn) -> None: raise NotImplementedError
