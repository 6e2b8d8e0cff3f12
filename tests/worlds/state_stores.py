"""Settings of a flow's state store."""

from __future__ import annotations

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def with_conf(text: str, **conf: str) -> str:
    return text.replace('"200 milliseconds"', f'"200 milliseconds", spark_conf={conf}')
