"""Orders of the demo: every record of the Kafka topic ``orders`` is read once, and each order is kept once.

A retrying producer sends an order again within minutes, so a day's watermark bounds what must be remembered.
"""

from pyspark.sql.functions import col, from_json

from streamkeeper import pipelines as dp

dp.only_where_set("ORDERS_BROKERS")

dp.create_source(
    "orders_raw",
    format="kafka",
    options={
        "kafka.bootstrap.servers": "{env:ORDERS_BROKERS}",
        "subscribe": "orders",
        "maxOffsetsPerTrigger": 10000,
        "failOnDataLoss": True,
    },
)


@dp.temporary_view(sources=["orders_raw"])
def distinct_orders(records):
    order = from_json(
        col("value").cast("string"), "order_id STRING, customer_id INT, amount DOUBLE, ordered_at TIMESTAMP"
    )
    return (
        records
        .select(order.alias("order"))
        .select("order.*")
        .where("order_id IS NOT NULL")
        .withWatermark("ordered_at", "1 day")
        .dropDuplicatesWithinWatermark(["order_id"])
    )  # fmt: skip


dp.create_streaming_table("orders", comment="One row for each order")


@dp.append_flow(name="clean_orders", target="orders", sources=["distinct_orders"], trigger="2 seconds")
def clean_orders(orders):
    return orders
