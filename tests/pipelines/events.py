"""Events of the demo: every file that appears in ``{data}/events`` is read once, and each event is kept
once.
"""

from streamkeeper import pipelines as dp

dp.create_source(
    "events_raw",
    format="json",
    path="{data}/events",
    schema="event_id STRING, user_id INT, kind STRING, amount DOUBLE, event_time TIMESTAMP",
    options={"maxFilesPerTrigger": 20},
)


@dp.temporary_view(sources=["events_raw"])
def distinct_events(events):
    return (
        events
        .where("event_id IS NOT NULL")
        .dropDuplicates(["event_id"])  # remove this line, and the checkpoint fits no longer
    )  # fmt: skip


dp.create_streaming_table("events", comment="One row for each event")


@dp.append_flow(name="clean_events", target="events", sources=["distinct_events"], trigger="2 seconds")
def clean_events(events):
    return events
