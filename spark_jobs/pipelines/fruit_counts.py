"""Pieces of fruit in a shop: those of the stocktaking, and what was delivered and sold since, from the files
of ``{data}/fruit``.

The counts are a state of the pipeline's own making (transformWithState) that begins with the stocktaking. A
fruit gets its row with its first event. Set FRUIT_COUNTS=1 to offer it.
"""

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from streamkeeper import pipelines as dp

dp.only_where_set("FRUIT_COUNTS")

dp.create_source(
    "fruit_files",
    format="json",
    path="{data}/fruit",
    schema="fruit STRING, pieces INT",
    options={"maxFilesPerTrigger": 100},
)

dp.create_initial_state(
    "stocktaking",
    schema="fruit STRING, pieces BIGINT",
    rows=[
        {"fruit": "apple", "pieces": 120},
        {"fruit": "orange", "pieces": 80},
        {"fruit": "banana", "pieces": 45},
    ],
)

dp.create_streaming_table("fruit_counts", comment="How many pieces of each fruit are there", keys=["fruit"])


class Counting(StatefulProcessor):
    def init(self, handle):
        self.pieces = handle.getValueState("pieces", "pieces BIGINT")

    def handleInitialState(self, key, counted, timers):  # noqa: N802 - Spark's name, as are the others
        self.pieces.update((counted.pieces,))

    def handleInputRows(self, key, rows, timers):  # noqa: N802
        before = self.pieces.get()[0] if self.pieces.exists() else 0
        pieces = before + sum(row.pieces for row in rows)
        self.pieces.update((pieces,))
        yield Row(fruit=key[0], pieces=pieces)

    def close(self):
        pass


@dp.update_flow(
    name="counted_fruit",
    target="fruit_counts",
    sources=["fruit_files"],
    trigger="2 seconds",
    state_store="rocksdb",
    initial_state="stocktaking",
)
def counted_fruit(events, stocktaking):
    return events.groupBy("fruit").transformWithState(
        statefulProcessor=Counting(),
        outputStructType="fruit STRING, pieces BIGINT",
        outputMode="Update",
        timeMode="None",
        initialState=stocktaking.groupBy("fruit"),
    )
