"""Orders with their shipments, from the Kafka topics ``orders`` and ``shipments``.

An order waits for its shipment for a day. One that is not shipped by then is written without one, once both
topics have gone past that day: the slower decides. Each topic has a watermark of its own, since shipments
are told later than orders. Set SHIPMENTS_BROKERS to offer it.
"""

from pyspark.sql.functions import col, expr, from_json

from streamkeeper import pipelines as dp

dp.only_where_set("SHIPMENTS_BROKERS")

BROKERS = {"kafka.bootstrap.servers": "{env:SHIPMENTS_BROKERS}", "maxOffsetsPerTrigger": 10000}

dp.create_source("orders_topic", format="kafka", options={**BROKERS, "subscribe": "orders"})
dp.create_source("shipments_topic", format="kafka", options={**BROKERS, "subscribe": "shipments"})


@dp.temporary_view(sources=["orders_topic"])
def orders_placed(records):
    body = "order_id STRING, customer_id INT, ordered_at TIMESTAMP"
    order = from_json(col("value").cast("string"), body).alias("order")
    return records.select(order).select("order.*").withWatermark("ordered_at", "10 minutes")


@dp.temporary_view(sources=["shipments_topic"])
def shipments_sent(records):
    body = "order_id STRING, carrier STRING, shipped_at TIMESTAMP"
    shipment = from_json(col("value").cast("string"), body).alias("shipment")
    parts = records.select(shipment).select("shipment.*").withColumnRenamed("order_id", "shipped_order")
    return parts.withWatermark("shipped_at", "1 hour")


dp.create_streaming_table(
    "order_shipments", comment="One row for each shipment, and one for each order without any within a day"
)


@dp.append_flow(
    name="shipped_orders",
    target="order_shipments",
    sources=["orders_placed", "shipments_sent"],
    trigger="2 seconds",
)
def shipped_orders(orders, shipments):
    same = "order_id = shipped_order AND shipped_at BETWEEN ordered_at AND ordered_at + INTERVAL 1 DAY"
    return orders.join(shipments, expr(same), "left_outer").drop("shipped_order")
