"""Settings of a flow's state store."""

from __future__ import annotations

from streamkeeper.checkpoint.log_entries import CHANGELOG, PROVIDER

__all__ = ["CHANGELOG", "PROVIDER", "ROCKS", "STATE_FORMAT", "with_conf"]

STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def with_conf(text: str, **conf: str) -> str:
    return text.replace('"200 milliseconds"', f'"200 milliseconds", spark_conf={conf}')
