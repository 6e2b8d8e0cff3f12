"""Customers of the demo: changes from ``{data}/customers/cdc``, and once the first snapshot from
``{data}/customers/snapshot``.

Both flows write one table, in any order: a change wins over the snapshot, whose rows all have the sequence 0.
"""

from streamkeeper import pipelines as dp

dp.create_source(
    "customers_cdc",
    format="json",
    path="{data}/customers/cdc",
    schema="customer_id INT, name STRING, email STRING, city STRING, operation STRING, sequenceNum BIGINT",
    options={"maxFilesPerTrigger": 20},
)
dp.create_source(
    "customers_snapshot",
    format="json",
    path="{data}/customers/snapshot",
    schema="customer_id INT, name STRING, email STRING, city STRING",
)


@dp.temporary_view(sources=["customers_cdc"])
def customers_changes(changes):
    return (
        changes
        .where("operation IS NOT NULL")
        .dropDuplicates(["customer_id", "sequenceNum"])  # remove this line, and the checkpoint fits no longer
    )  # fmt: skip


dp.create_streaming_table(
    "customers",
    comment="One row for each customer, as the newest change has it",
    table_properties={"delta.enableDeletionVectors": False},  # readers that know none can read it, too
)

dp.create_auto_cdc_flow(
    name="customers_incremental_flow",
    target="customers",
    source="customers_changes",
    keys=["customer_id"],
    sequence_by="sequenceNum",
    apply_as_deletes="operation = 'DELETE'",
    apply_as_truncates="operation = 'TRUNCATE'",
    except_column_list=["operation", "sequenceNum"],
    stored_as_scd_type=1,
    trigger="2 seconds",
)

dp.create_auto_cdc_flow(
    name="customers_snapshot_flow",
    target="customers",
    source="customers_snapshot",
    keys=["customer_id"],
    sequence_by=0,
    stored_as_scd_type=1,
    once=True,
)
