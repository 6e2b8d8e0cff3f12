from pyspark.sql.types import StructType
from streamkeeper.cdc import CdcSpec
def check_spec(schema: StructType, spec: CdcSpec) -> None: ...
def target_schema(schema: StructType, spec: CdcSpec) -> StructType: raise NotImplementedError
