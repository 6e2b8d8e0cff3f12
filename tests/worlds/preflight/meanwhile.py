"""What happens to a flow's sources, table and checkpoint while it stands still."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from streamkeeper.checkpoint.crc_files import twin_of
from tests.worlds.flow_world import FIRST_FILE, Flowbed
from tests.worlds.sources.source_world import COLUMNS_OF_EVENTS, DeltaBed, KafkaBed

HELPING = "def helped(events):\n    return events.where('n > {least}')\n"


@dataclass
class Scene:
    """A flow, and the bed of its source, if that is another than a folder of files."""

    bed: Flowbed
    source: DeltaBed | KafkaBed | None = None

    @property
    def delta(self) -> DeltaBed:
        assert isinstance(self.source, DeltaBed)
        return self.source

    @property
    def kafka(self) -> KafkaBed:
        assert isinstance(self.source, KafkaBed)
        return self.source

    def arrive(self, *numbers: int) -> None:
        """Let events come, in one file, commit or go."""
        (self.source or self.bed).arrive(*numbers)


def rewrite_files(scene: Scene) -> None:
    """Write the first file again, with another event."""
    first = min((scene.bed.root / "data" / "events").glob("*.json"))
    first.write_text(first.read_text().replace("e1", "e9"))
    os.utime(first, (FIRST_FILE + 1000, FIRST_FILE + 1000))


def come_late(scene: Scene) -> None:
    """Let a file come whose time is before that of all others."""
    file = scene.bed.arrive(50)
    os.utime(file, (FIRST_FILE - 100, FIRST_FILE - 100))


def make_other_table(scene: Scene) -> None:
    """Copy the rows of the source table to another one."""
    spark = scene.bed.spark
    rows = spark.read.format("delta").load(scene.delta.path)
    rows.write.format("delta").save(str(Path(scene.delta.path).with_name("other")))


def make_source_anew(scene: Scene) -> None:
    """Remove the source table, and make it again with other rows."""
    shutil.rmtree(scene.delta.path)
    for number in (11, 12, 13):
        scene.delta.arrive(number)


def widen_source(scene: Scene) -> None:
    """Add a column to the source table."""
    scene.delta.sql("ALTER TABLE {table} ADD COLUMN more STRING")


def rename_column(scene: Scene) -> None:
    """Rename a column of the source table that the flow reads."""
    scene.delta.sql("ALTER TABLE {table} RENAME COLUMN n TO number")
    scene.delta.columns = replaced("int(n)", "int(n) number")


def drop_column(scene: Scene) -> None:
    """Drop a column of the source table that the flow reads."""
    scene.delta.sql("ALTER TABLE {table} DROP COLUMN n")
    scene.delta.columns = replaced("int(n)")


def widen_column(scene: Scene) -> None:
    """Give a column of the source table that the flow reads a wider type."""
    scene.delta.sql("ALTER TABLE {table} ALTER COLUMN n TYPE BIGINT")
    scene.delta.columns = replaced("int(n)", "bigint(n)")


def add_column(scene: Scene) -> None:
    """Add a column to the source table, which the next rows have."""
    scene.delta.sql("ALTER TABLE {table} ADD COLUMN more STRING")
    scene.delta.columns = (*COLUMNS_OF_EVENTS, "'x' more")


def replaced(column: str, *by: str) -> tuple[str, ...]:
    """Return the columns of events with others in the place of one."""
    at = COLUMNS_OF_EVENTS.index(column)
    return (*COLUMNS_OF_EVENTS[:at], *by, *COLUMNS_OF_EVENTS[at + 1 :])


def make_other_topic(scene: Scene) -> None:
    """Make another topic, with records."""
    scene.kafka.create(f"{scene.kafka.topic}-more")
    scene.kafka.arrive(30, 31, topic=f"{scene.kafka.topic}-more")


def widen_topic(scene: Scene) -> None:
    """Add a partition to the topic, and a record to it."""
    scene.kafka.widen(3)
    scene.kafka.arrive(50, partition=2)


def make_topic_anew(scene: Scene) -> None:
    """Delete the topic, and make it again with more records than it had."""
    scene.kafka.delete()
    scene.kafka.create()
    scene.kafka.arrive(*range(11, 31))


def remove_table(scene: Scene) -> None:
    """Remove the table that the flow writes."""
    shutil.rmtree(scene.bed.table)


def change_helper(scene: Scene) -> None:
    """Change the module beside the pipeline file."""
    (scene.bed.root / "pipelines" / "helping.py").write_text(HELPING.format(least=40))


def raise_log_version(scene: Scene) -> None:
    """Let the newest entry of the offset log be of a version that this Spark does not know."""
    checkpoint = scene.bed.checkpoint(1)
    name = f"offsets/{checkpoint.last_commit()}"
    file = Path(checkpoint.path(name))
    file.write_text(file.read_text().replace("v2", "v9", 1))
    Path(twin_of(str(file))).unlink(missing_ok=True)
