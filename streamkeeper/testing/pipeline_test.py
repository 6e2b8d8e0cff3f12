"""A pipeline file in a test, with rows for its sources."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamkeeper.errors import RequestError
from streamkeeper.exit_codes import Outcome
from streamkeeper.flows import holds
from streamkeeper.flows.files import open_home
from streamkeeper.flows.holds import Hold
from streamkeeper.manifest.import_file import load_pipeline
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.testing.rewritten import rewritten, schema_of, schema_of_state
from streamkeeper.watch.batch_numbers import Batch, recent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from streamkeeper.declare.model import GivenState, Pipeline

_FIRST = 1_700_000_000
"""Time of the first file: Spark reads files in the order of their times, and they must differ."""

Rows = Iterable[Mapping[str, Any]]


class PipelineTest:
    """A pipeline file whose sources are rows of a test; its drivers run in this process.

    A row is a mapping by column; a column that it lacks is null. Times are ISO texts or ``datetime``, and
    binary columns, such as those of Kafka, take texts or bytes.

    :param file: the pipeline file. Modules beside it are taken along.
    :param folder: a folder that is not there yet, for state and tables.
    :param spark: a session with the settings of a driver (:mod:`streamkeeper.testing.fixtures`).
    :param schemas: columns as DDL strings, by name, of sources that declare none.
    :raises DeclarationError: the file declares something that is not allowed.
    :raises RequestError: the columns of a source are unknown, or it cannot be replaced.
    """

    def __init__(
        self,
        file: str | Path,
        folder: Path,
        spark: SparkSession,
        schemas: Mapping[str, str] | None = None,
    ) -> None:
        self.spark, self._file, self._test_schemas = spark, Path(file), dict(schemas or {})
        self.settings = replace(
            Settings.from_environment(),
            pipelines=folder / "pipelines",
            state=str(folder / "state"),
            warehouse=str(folder / "warehouse"),
            backups=str(folder / "backups"),
            data=str(folder / "data"),
            lease_term=2.0,
            heartbeat_interval=0.2,
            register_tables=False,
        )
        folder.mkdir(parents=True)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(self._file.parent, self.settings.pipelines, ignore=ignored)
        for other in self.settings.pipelines.glob("*.py"):
            if other.name != self._file.name and "create_streaming_table" in other.read_text():
                other.unlink()  # another pipeline
        self._text, self._arrived = self._file.read_text(), 0
        self._schemas: dict[str, str] = {}
        self._tables: dict[str, str] = {}
        self._declare()
        if str(PROJECT / "spark_jobs") not in sys.path:
            sys.path.insert(0, str(PROJECT / "spark_jobs"))

    def frame(self, source: str, rows: Rows) -> DataFrame:
        """Return rows as a DataFrame with the columns of a source.

        :raises RequestError: there is no such source, or a row has a column that it lacks.
        """
        from pyspark.sql.functions import from_json
        from pyspark.sql.types import BinaryType, StructType

        if source not in self._schemas:
            raise RequestError(
                f"{self._file.name} has no source {source!r}. It has {', '.join(sorted(self._schemas))}."
            )
        schema = StructType.fromDDL(self._schemas[source])
        assert isinstance(schema, StructType), "columns are a struct"
        binary = {field.name for field in schema.fields if isinstance(field.dataType, BinaryType)}
        made = []
        for row in rows:
            strange = sorted(set(row) - set(schema.names))
            if strange:
                raise RequestError(
                    f"A row of the source {source} has {', '.join(strange)}, which it lacks. Its columns are"
                    f" {', '.join(schema.names)}."
                )
            plain = {name: _encoded(value) if name in binary else value for name, value in row.items()}
            made.append((json.dumps(plain, default=str),))
        texts = self.spark.createDataFrame(made, "row STRING")
        return texts.select(from_json("row", schema, {"mode": "FAILFAST"}).alias("row")).select("row.*")

    def view(self, name: str, **rows: Rows) -> list[dict[str, Any]]:
        """Return what a view, or the function of an append flow, makes of rows of the sources that it reads.

        They are one batch: what must be remembered over batches is tried with :meth:`run`. An initial state
        may have other rows here than it is declared with.

        :raises RequestError: there is no such view or flow.
        """
        from streamkeeper_jobs.stream.data_frame import frames_of
        from streamkeeper_jobs.stream.given_state import given_frame

        from streamkeeper.manifest.environment import opened_flow
        from streamkeeper.manifest.manifest import Flow

        def give(initial_state: GivenState) -> DataFrame:
            named = initial_state.name in rows
            return (
                self.frame(initial_state.name, rows[initial_state.name])
                if named
                else given_frame(self.spark, initial_state)
            )

        pipeline = self._loaded()
        for declared in pipeline.flows:
            read = {item.name for item in pipeline.inputs(declared)} | {declared.name}
            if name in read:
                flow = opened_flow(Flow(pipeline, declared, ""), self.settings)
                frames = frames_of(
                    flow, lambda source: self.frame(source.name, rows.get(source.name, ())), give
                )
                return [row.asDict(recursive=True) for row in frames[name].collect()]
        names = [item.name for item in (*pipeline.views, *pipeline.flows)]
        raise RequestError(f"{self._file.name} has no view or flow {name!r}. It has {', '.join(names)}.")

    def arrive(self, source: str, rows: Rows) -> None:
        """Let rows arrive in a source, for the next batch of its flows, or in an initial state's table."""
        if source in self._tables:
            path = self.settings.table_path(self._tables[source])
            self.frame(source, rows).write.format("delta").mode("append").save(path)
            return
        self._arrived += 1
        folder = Path(self.settings.data) / source
        folder.mkdir(parents=True, exist_ok=True)
        aside = folder.with_name(f"{source}.new")
        self.frame(source, rows).coalesce(1).write.mode("overwrite").parquet(str(aside))
        (made,) = aside.glob("part-*.parquet")
        os.utime(made, (_FIRST + self._arrived, _FIRST + self._arrived))
        made.replace(folder / f"{self._arrived:06d}.parquet")
        shutil.rmtree(aside)

    def run(self, flow: str) -> Outcome:
        """Run a driver of a flow until all that arrived is read, and return how it ended.

        The next call is a restart: it goes on with the checkpoint of this one.
        """
        from streamkeeper_jobs.driver.application import run

        for source in self._schemas.keys() - self._tables.keys():
            (Path(self.settings.data) / source).mkdir(parents=True, exist_ok=True)
        return run(self.settings, [self._full(flow)], available_now=True)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table; none if nothing wrote it."""
        path = Path(self.settings.table_path(table))
        if not path.exists():
            return []
        frame = self.spark.read.format("delta").load(str(path))
        return [row.asDict(recursive=True) for row in frame.collect()]

    def batches(self, flow: str) -> Sequence[Batch]:
        """Return the numbers of a flow's recent batches, oldest first: rows, state, late rows, …"""
        return recent(open_home(self.settings, self._full(flow)))

    def park(self, flow: str) -> Hold | None:
        """Return why a flow is parked, with error class and recovery in ``details``; None if it is not."""
        return holds.parked(open_home(self.settings, self._full(flow)))

    def edit(self, old: str, new: str) -> None:
        """Change the pipeline file of this test, as a deploy would; the user's own stays as it is.

        :raises RequestError: the old text is not there exactly once.
        """
        if self._text.count(old) != 1:
            raise RequestError(
                f"{self._file.name} has {old!r} {self._text.count(old)} times. Give a text that it has once."
            )
        self._text = self._text.replace(old, new)
        self._declare()

    def _full(self, flow: str) -> str:
        return flow if "." in flow else f"{self._file.stem}.{flow}"

    def _loaded(self) -> Pipeline:
        return load_pipeline(self.settings.pipelines / self._file.name, self.settings.data)

    def _declare(self) -> None:
        here = self.settings.pipelines / self._file.name
        here.write_text(self._text)
        loaded = self._loaded()
        schemas = {source.name: schema_of(source, self._test_schemas) for source in loaded.sources}
        initial_states = [flow.initial_state for flow in loaded.flows if flow.initial_state is not None]
        self._tables = {state.name: state.table for state in initial_states if state.table is not None}
        self._schemas = {
            **schemas,
            **{state.name: schema_of_state(state, self._test_schemas) for state in initial_states},
        }
        aside = here.with_suffix(".new")
        aside.write_text(rewritten(self._text, schemas, self._file.name))
        aside.replace(here)


def _encoded(value: Any) -> str | None:
    """Return a binary value as JSON has it."""
    plain = value.encode() if isinstance(value, str) else value
    return None if plain is None else base64.b64encode(plain).decode()
