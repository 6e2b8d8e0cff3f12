"""Totals of orders by customer and hour, from the files of ``{data}/orders``.

An hour's totals change while its orders come in, and each change replaces the row that is there. An hour is
closed two hours after its end, by the orders' own times: an order that comes later still is dropped, and
counted as late. Set ORDER_TOTALS=1 to offer it.
"""

from pyspark.sql.functions import col, count, sum, window

from streamkeeper import pipelines as dp

dp.only_where_set("ORDER_TOTALS")

dp.create_source(
    "orders_files",
    format="json",
    path="{data}/orders",
    schema="order_id STRING, customer_id INT, amount DECIMAL(10,2), ordered_at TIMESTAMP",
    options={"maxFilesPerTrigger": 100},
)

dp.create_streaming_table(
    "order_totals",
    comment="One row for each customer and hour",
    keys=["customer_id", "hour"],
    asset_every="watermark hour",
)


@dp.update_flow(name="hourly_totals", target="order_totals", sources=["orders_files"], trigger="2 seconds")
def hourly_totals(orders):
    return (
        orders
        .withWatermark("ordered_at", "2 hours")
        .groupBy("customer_id", window("ordered_at", "1 hour"))
        .agg(count("*").alias("orders"), sum("amount").alias("amount"))
        .select("customer_id", col("window.start").alias("hour"), "orders", "amount")
    )  # fmt: skip
