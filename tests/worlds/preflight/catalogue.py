"""Changes of a flow, each with its verdict and what its driver then does: tried one by one by
``tests/spark/preflight/test_verdicts.py``, and listed in ``docs/reference/changes.md``
(:mod:`tests.worlds.preflight.page`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from streamkeeper.exit_codes import Outcome
from streamkeeper.trial.verdict import Compatibility
from tests.worlds.flow_world import DEDUPE, SCHEMA, pipeline
from tests.worlds.preflight import meanwhile
from tests.worlds.sources.source_world import DELTA, KAFKA, reading
from tests.worlds.state_stores import CHANGELOG, PROVIDER, ROCKS, with_conf
from tests.worlds.states.given import COLUMNS, ROWS, numbering

if TYPE_CHECKING:
    from tests.worlds.preflight.meanwhile import Scene

Rows = list[dict[str, Any]]
FILES_WORLD, DELTA_WORLD, MAPPED_WORLD, KAFKA_WORLD = "files", "delta", "mapped delta", "kafka"
"""What a flow reads; a mapped table is one whose columns can be renamed, dropped and widened."""
TOPIC, OTHER_TOPIC, BROKERS = "@topic@", "@other@", "@brokers@"
"""Stand in the text of a flow that reads Kafka, or writes to it."""

RUNS, PARKED, WAITS, ENDS, REFUSES = "runs", "is parked", "waits", "ends by itself", "does not start"
OUTCOMES = {
    RUNS: Outcome.STOPPED,
    WAITS: Outcome.STOPPED,
    PARKED: Outcome.PARKED,
    ENDS: Outcome.DONE,
    REFUSES: Outcome.USAGE,
}


@dataclass(frozen=True)
class Change:
    """A change of a declaration, or of what it reads and writes; ``but`` is what else is to be known of it.

    ``why`` are words of the verdict. ``meanwhile`` happens while the flow stands still, and ``come`` are the
    events after it. ``shows`` must be true of the rows in the end; ``same`` says that they must be those of a
    flow that did not change, as wherever the verdict is ``compatible``.
    """

    part: str
    name: str
    old: str
    new: str
    compatibility: Compatibility
    why: str = ""
    then: str = ""
    but: str = ""
    world: str = FILES_WORLD
    meanwhile: Callable[[Scene], None] | None = None
    come: tuple[int, ...] = (40, 41)
    shows: Callable[[Rows], bool] | None = None
    same: bool = False

    @property
    def makes_the_same(self) -> bool:
        """Whether the table must be that of an unchanged flow."""
        return self.same or self.compatibility is Compatibility.COMPATIBLE

    @property
    def driver(self) -> str:
        """What the driver of the new declaration does."""
        return self.then or (PARKED if self.compatibility is Compatibility.INCOMPATIBLE else RUNS)


def has(**values: object) -> Callable[[Rows], bool]:
    """Return whether a row has these values."""
    return lambda rows: any(all(row[name] == value for name, value in values.items()) for row in rows)


def lacks(**values: object) -> Callable[[Rows], bool]:
    """Return whether no row has them."""
    return lambda rows: not has(**values)(rows)


def of(part: str) -> Callable[..., Change]:
    """Return what makes the changes of a part of the catalogue."""
    return partial(Change, part)


SAME, NOTED, BREAKS, UNDEFINED = (
    Compatibility.COMPATIBLE,
    Compatibility.RESULTS_DIFFER,
    Compatibility.INCOMPATIBLE,
    Compatibility.UNKNOWN,
)
PLAIN, DISTINCT = pipeline(view=""), pipeline()
MARKED = '.withWatermark("event_time", "{delay}")'


def option(name: str, value: object, text: str = PLAIN) -> str:
    """Add an option to the source of files."""
    return text.replace('"maxFilesPerTrigger": 2', f'"maxFilesPerTrigger": 2, "{name}": {value!r}')


def seen(view: str) -> str:
    """Return a flow without state, whose view does this."""
    return pipeline(view=view)


# Sources
MORE = f'dp.create_source("more_raw", format="json", path="{{data}}/more", schema="{SCHEMA}")'
BOTH: dict[str, Any] = {"view": "", "sources": ("distinct_events", "more_raw"), "parameters": "events, more"}
UNION = pipeline(**BOTH, more=MORE, flow="events.unionByName(more)")
MINUS = pipeline(**BOTH, more=MORE, flow='events.unionByName(more.withColumn("n", -F.col("n")))')


def delta(**text: str) -> str:
    """Declare a flow that reads a Delta table."""
    return reading(DELTA, text, options='"maxFilesPerTrigger": 1')


def kafka(topics: str = f'"subscribe": "{TOPIC}"', **text: str) -> str:
    """Declare a flow that reads Kafka."""
    own = {"brokers": BROKERS, "topics": topics, "schema": SCHEMA}
    return reading(KAFKA, text, options='"maxOffsetsPerTrigger": 4', **own)


CHOSEN = '.select("event_id", "user_id", "n", "event_time")'
source = of("sources")
of_delta = partial(of("Delta sources"), world=DELTA_WORLD)
of_kafka = partial(of("Kafka"), world=KAFKA_WORLD)
SOURCES = (
    source("rate limit", DISTINCT, pipeline(files=7), SAME, "limits"),
    source("rate limit beside `latestFirst`", option("latestFirst", True),
           option("latestFirst", True).replace('"maxFilesPerTrigger": 2, ', ""), NOTED,
           "maxfilespertrigger"),
    source("path", DISTINCT, DISTINCT.replace("/events", "/elsewhere"), UNDEFINED, "reads json",
           then=PARKED),
    source("format of the files", PLAIN, PLAIN.replace('format="json"', 'format="csv"'), UNDEFINED,
           "reads csv", but="and reads what comes as the new format", shows=has(n=None)),
    source("another kind of source", PLAIN, pipeline(
        source='format="rate", options={"rowsPerSecond": 1}',
        view='.selectExpr("string(value) event_id", "int(value) user_id", "int(value) n", '
             '"timestamp event_time")'), BREAKS, "another kind of source"),
    source("renamed", DISTINCT, DISTINCT.replace("events_raw", "renamed_raw"), BREAKS, "renamed_raw"),
    source("added", PLAIN, UNION, NOTED, "more_raw is new"),
    source("added, without a schema", PLAIN, pipeline(
        **BOTH, more=MORE.partition(", schema")[0] + ")",
        flow="events.unionByName(more.selectExpr('event_id', 'int(user_id) user_id', 'int(n) n', "
             "'timestamp(event_time) event_time'))"), NOTED, "more_raw is new"),
    source("added, before its folder is there", PLAIN, UNION.replace("/more", "/later"), UNDEFINED,
           "a driver waits", then=WAITS, but="with all other sources", shows=lacks(n=40)),
    source("removed", UNION, PLAIN, NOTED, "more_raw is gone"),
    source("two swapped by name", MINUS,
           MINUS.replace("['distinct_events', 'more_raw']", "['more_raw', 'distinct_events']"), NOTED,
           "sources more_raw, distinct_events", but="and each row is made by the other's rule",
           shows=has(n=-40)),
    source("type of a column in its schema", PLAIN, PLAIN.replace("user_id INT", "user_id TINYINT"), NOTED,
           "user_id TINYINT"),
    source("type of a column in its schema, which the table cannot store", PLAIN,
           PLAIN.replace("n INT", "n BOOLEAN"), BREAKS, "cannot be stored"),
    source("column left out of its schema", PLAIN, PLAIN.replace("user_id INT, ", ""), NOTED, "schema",
           but="and the column is null", shows=has(n=40, user_id=None)),
    source("column added to its schema", PLAIN, PLAIN.replace("n INT", "n INT, more INT"), BREAKS, "lacks"),
    source("its schema inferred from now on", seen(CHOSEN),
           seen(CHOSEN).replace(f'schema="{SCHEMA}", ', ""), NOTED, "schema nothing"),
    source("`mode`: lines that cannot be read are dropped", PLAIN, option("mode", "DROPMALFORMED"), NOTED,
           "value of mode"),
    source("`multiLine`", PLAIN, option("multiLine", True), NOTED, "value of multiline",
           but="and reads one row of each file", shows=lacks(n=41)),
    source("`timestampFormat`", PLAIN, option("timestampFormat", "yyyy"), NOTED, "timestampformat",
           but="and times are null", shows=has(event_time=None)),
    source("`pathGlobFilter`", PLAIN, option("pathGlobFilter", "*.csv"), NOTED, "pathglobfilter",
           but="and reads the files that match", shows=lacks(n=40)),
    source("`maxFileAge`", PLAIN, option("maxFileAge", "1s"), NOTED, "maxfileage",
           but="and skips files that come late", meanwhile=meanwhile.come_late, shows=lacks(n=50)),
    source("`latestFirst`", PLAIN, option("latestFirst", True), NOTED, "latestfirst"),
    source("`cleanSource`", PLAIN, option("cleanSource", "delete"), NOTED, "cleansource"),
    source("an option that Spark does not know (`includeExistingFiles`)", PLAIN,
           option("includeExistingFiles", False), NOTED, "includeexistingfiles", same=True),
    source("no change, but files were written again", PLAIN, PLAIN, NOTED, "were written again",
           but="and does not read them again", shows=lacks(event_id="e9"),
           meanwhile=meanwhile.rewrite_files),
    of_delta("rate limit", delta(), delta(options='"maxFilesPerTrigger": 7'), SAME, "limits"),
    of_delta("`start`", delta(), delta(parameters="start='latest', "), NOTED, "a reset would use",
             same=True),
    of_delta("`skipChangeCommits`", delta(), delta(options='"skipChangeCommits": True'), NOTED,
             "skipchangecommits"),
    of_delta("rate limit beside `track_schema`", delta(parameters="track_schema=True, "),
             delta(parameters="track_schema=True, ", options='"maxFilesPerTrigger": 7'), SAME, "limits"),
    of_delta("path", delta(), delta().replace("/source", "/other"), BREAKS, "was recreated",
             meanwhile=meanwhile.make_other_table),
    of_delta("no change, but the table was made anew", delta(), delta(), BREAKS, "was recreated",
             meanwhile=meanwhile.make_source_anew),
    of_delta("no change, but a column was added to the table", delta(), delta(), BREAKS, "lacks",
             meanwhile=meanwhile.widen_source),
    of_kafka("rate limit", kafka(), kafka(options='"maxOffsetsPerTrigger": 7'), SAME, "limits"),
    of_kafka("`start`", kafka(), kafka(parameters="start='latest', "), NOTED, "a reset would use",
             same=True),
    of_kafka("`failOnDataLoss`", kafka(), kafka(options='"failOnDataLoss": False'), NOTED,
             "failondataloss"),
    of_kafka("`includeHeaders`", kafka(), kafka(options='"includeHeaders": True'), NOTED, "includeheaders"),
    of_kafka("another topic", kafka(), kafka(f'"subscribe": "{TOPIC}-more"'), UNDEFINED, "its positions are",
             then=PARKED, meanwhile=meanwhile.make_other_topic),
    of_kafka("a topic added", kafka(), kafka(f'"subscribe": "{TOPIC},{TOPIC}-more"'), UNDEFINED,
             "its positions are", meanwhile=meanwhile.make_other_topic,
             but="and reads it from its beginning", shows=has(n=30)),
    of_kafka("the same topic by a pattern", kafka(), kafka(f'"subscribePattern": "{TOPIC}"'), UNDEFINED,
             "its positions are"),
    of_kafka("addresses of the brokers", kafka(), kafka(brokers=f"{BROKERS},{BROKERS}"), NOTED,
             "kafka.bootstrap.servers", same=True),
    of_kafka("no change, but partitions were added", kafka(), kafka(), NOTED, "new since then",
             but="and reads them from their first record", shows=has(n=50), meanwhile=meanwhile.widen_topic),
    of_kafka("no change, but the topic was made anew", kafka(), kafka(), BREAKS, "recreated",
             meanwhile=meanwhile.make_topic_anew),
)  # fmt: skip

# Delta sources whose columns change, and whose schemas the flow follows
BY_KEY = """dp.create_auto_cdc_flow(
    name="clean_events", target="events", source="parsed", trigger="200 milliseconds",
    keys=["event_id"], sequence_by="event_time",
)
"""
OVER_A_RENAMING = '.withColumnRenamed("n", "number").withColumnRenamed("number", "n")'
WHERE_IT_IS = '.select(*(name for name in ("event_id", "user_id", "n", "event_time") if name in raw.columns))'


def tracked(view: str = "", ready: str = "", by_key: bool = False) -> str:
    """Declare a flow that follows the schemas of its table, and is ready for a change of them."""
    allowed = f', "allowSourceColumn{ready}": "always"' if ready else ""
    options = f'"maxFilesPerTrigger": 1{allowed}'
    text = delta(view=view, options=options, parameters="track_schema=True, ")
    return text.partition("@dp.append_flow")[0] + BY_KEY if by_key else text


def followed(into: str, by_key: bool) -> tuple[Change, ...]:
    """Return the changes of a followed source, with a flow of one kind."""
    one, old = partial(of_delta, world=MAPPED_WORLD), tracked(by_key=by_key)
    return (
        one(f"a column was renamed, with `track_schema`, {into}: the view takes both names", old,
            tracked(OVER_A_RENAMING, "Rename", by_key), NOTED, "allowsourcecolumnrename",
            meanwhile=meanwhile.rename_column, shows=has(event_id="e40", n=40)),
        one(f"a column was renamed, with `track_schema`, {into}: the view takes the new name alone", old,
            tracked('.withColumn("n", F.col("number")).drop("number")', "Rename", by_key), BREAKS, "number",
            meanwhile=meanwhile.rename_column),
        one(f"a column was dropped, with `track_schema`, {into}: the view takes it where it is", old,
            tracked(WHERE_IT_IS, "Drop", by_key), NOTED, "allowsourcecolumndrop",
            but="and the column is null", meanwhile=meanwhile.drop_column, shows=has(event_id="e40", n=None)),
        one(f"a column got a wider type, with `track_schema`, {into}: the view casts it", old,
            tracked('.withColumn("n", F.col("n").cast("int"))', "TypeChange", by_key), NOTED,
            "allowsourcecolumntypechange", meanwhile=meanwhile.widen_column,
            shows=has(event_id="e40", n=40)),
        one(f"no change, but a column was added, with `track_schema`, {into}: the view leaves it out",
            tracked('.drop("more")', by_key=by_key), tracked('.drop("more")', by_key=by_key), SAME,
            meanwhile=meanwhile.add_column),
    )  # fmt: skip


FOLLOWED = (*followed("appended", False), *followed("by key", True))

# The declaration, its triggers and settings
TIMED = seen('.withColumn("user_id", F.hour("event_time"))')
ROCKY = with_conf(DISTINCT, **{PROVIDER: ROCKS})
PARTITIONS, MEMORY = "spark.sql.shuffle.partitions", "spark.driver.memory"
ZONE = "spark.sql.session.timeZone"
OTHER = """
dp.create_streaming_table("others")

@dp.append_flow(target="others", sources=["events_raw"])
def other(events):
    return events.where("n > 100")
"""
setting = of("settings and triggers")
SETTINGS = (
    setting("comments and the order of lines", DISTINCT, DISTINCT + "\n# nothing new\n", SAME, "ran last"),
    setting("another flow of the file", DISTINCT, DISTINCT + OTHER, SAME, "ran last"),
    setting("trigger", DISTINCT, DISTINCT.replace("200 milliseconds", "300 milliseconds"), SAME),
    setting("`on_failure`", DISTINCT, DISTINCT.replace(
        'target="events",', 'target="events", on_failure="retry",'), SAME),
    setting("`park_after`", DISTINCT, DISTINCT.replace(
        'target="events",', 'target="events", park_after=5,'), SAME),
    setting("`rewind_window`", DISTINCT, DISTINCT.replace(
        'target="events",', 'target="events", rewind_window="1 hour",'), SAME),
    setting("memory of the driver", DISTINCT, with_conf(DISTINCT, **{MEMORY: "2g"}), SAME),
    setting("`spark.sql.shuffle.partitions`, without state", PLAIN, with_conf(PLAIN, **{PARTITIONS: "3"}),
            SAME),
    setting("`spark.sql.shuffle.partitions`, with state", DISTINCT, with_conf(DISTINCT, **{PARTITIONS: "3"}),
            NOTED, "until a reset", but="with the old number", same=True),
    setting("`once`", DISTINCT, DISTINCT.replace(', trigger="200 milliseconds"', ", once=True"), NOTED,
            "once True", then=ENDS),
    setting("time zone", TIMED, with_conf(TIMED, **{ZONE: "Asia/Tokyo"}), NOTED, ZONE,
            but="and the hours of rows differ", shows=has(user_id=9)),
    setting("state store", DISTINCT, ROCKY, NOTED, "until a reset", but="with the old one", same=True),
    setting("state store, declared no more", ROCKY, DISTINCT, NOTED, "declared no more",
            but="with the old one", same=True),
    setting("changelog of RocksDB", ROCKY, with_conf(DISTINCT, **{PROVIDER: ROCKS, CHANGELOG: "true"}), NOTED,
            CHANGELOG, same=True),
    setting("which of several watermarks rules", DISTINCT,
            with_conf(DISTINCT, **{"spark.sql.streaming.multipleWatermarkPolicy": "max"}), NOTED,
            "until a reset", but="with the old one", same=True),
    setting("format of an aggregation's state", DISTINCT,
            with_conf(DISTINCT, **{"spark.sql.streaming.aggregation.stateFormatVersion": "1"}), NOTED,
            "until a reset", but="with the old one", same=True),
    setting("no change, but a newer Spark wrote the offset log", DISTINCT, DISTINCT, BREAKS, "",
            meanwhile=meanwhile.raise_log_version),
)  # fmt: skip

# Code
UDF = '.withColumn("user_id", F.udf(lambda n: n * {by}, "int")("n"))'
HELPED = "from helping import helped\n" + PLAIN.replace("return events\n\ndp", "return helped(events)\n\ndp")
code = of("code")
CODE = (
    code("a UDF", seen(UDF.format(by=2)), seen(UDF.format(by=3)), NOTED, "is the code's",
         shows=has(user_id=120)),
    code("a module beside the file", HELPED, HELPED, NOTED, "+ Filter (n > 40)",
         meanwhile=meanwhile.change_helper, shows=lacks(n=40)),
    code("a constant of the file", PLAIN.replace("dp\n", "dp\n\nLEAST = 2\n", 1),
         PLAIN.replace("dp\n", "dp\n\nLEAST = 3\n", 1), NOTED, "is the code's", same=True),
    code("another name of a view", PLAIN, PLAIN.replace("distinct_events", "all_events"), NOTED,
         "all_events", same=True),
)  # fmt: skip

# Tables and projections
STRUCT = '.select("event_id", "user_id", "n", F.struct("user_id", {more}"n").alias("both"))'
sink = of("the table")
TABLES = (
    sink("another table", PLAIN, PLAIN.replace('"events")', '"others")', 1).replace(
        'target="events"', 'target="others"'), BREAKS, "lacks batch"),
    sink("no change, but the table is gone", PLAIN, PLAIN, BREAKS, "lacks batch",
         meanwhile=meanwhile.remove_table),
    sink("its properties", PLAIN, PLAIN.replace(
        '_table("events")', '_table("events", table_properties={"delta.appendOnly": "true"})'), NOTED,
        "keeps its own", same=True),
    sink("its partitions", PLAIN, PLAIN.replace(
        '_table("events")', '_table("events", partition_cols=["user_id"])'), NOTED, "keeps its own",
        same=True),
    sink("its comment", PLAIN, PLAIN.replace('_table("events")', '_table("events", comment="all")'), NOTED,
         "keeps its own", same=True),
)  # fmt: skip
FUNCTION = """@dp.foreach_batch_sink()
def events(batch, batch_id, transaction):
    batch.write.format("noop").mode("overwrite").save()"""
_AS_JSON = 'return events.select(F.to_json(F.struct("*")).alias("value"))'


def sunk(declared: str, text: str = PLAIN) -> str:
    """Return a flow whose target is a sink."""
    return text.replace('dp.create_streaming_table("events")', declared, 1)


def to_topic(topic: str) -> str:
    """Return a flow whose target is a topic."""
    where = {"kafka.bootstrap.servers": BROKERS, "topic": topic}
    before, _, _ = sunk(f'dp.create_sink("events", "kafka", {where})').rpartition("return events")
    return f"{before}{_AS_JSON}\n"


def to_files(format: str, folder: str = "out") -> str:
    """Return a flow whose target are files."""
    return sunk(f'dp.create_sink("events", "{format}", {{"path": "{{data}}/{folder}"}})')


into = of("sinks")
SINKS = (
    into("a function: its code", sunk(FUNCTION), sunk(FUNCTION.replace("noop", "NOOP")), NOTED,
         "function of the sink changed"),
    into("a function becomes files", sunk(FUNCTION), to_files("json"), NOTED, "has sink json",
         but="and writes there what is new"),
    into("a function becomes Kafka", sunk(FUNCTION), to_topic(TOPIC), NOTED, "has sink kafka",
         but="and writes there what is new"),
    into("files become Kafka", to_files("json"), to_topic(TOPIC), NOTED, "has sink kafka",
         but="and writes there what is new"),
    into("Kafka becomes files", to_topic(TOPIC), to_files("json"), NOTED, "has sink json",
         but="and writes there what is new"),
    into("Kafka: another topic", to_topic(TOPIC), to_topic(OTHER_TOPIC), NOTED, "has the options",
         but="and writes there what is new"),
    into("files: another folder", to_files("json"), to_files("json", "next"), BREAKS, "folder"),
    into("files: another format in the same folder", to_files("json"), to_files("csv"), NOTED, "has sink csv",
         but="and a reader of one format sees rows of both"),
    into("a table becomes files", PLAIN, to_files("json"), BREAKS, "name of a table"),
    into("files become a table", to_files("json"), PLAIN, BREAKS, "lacks"),
)  # fmt: skip
projection = of("columns of the output")
PROJECTIONS = (
    projection("computed otherwise", PLAIN, seen('.withColumn("n", F.col("n") + 1)'), NOTED, "+ Project",
               shows=has(n=42)),
    projection("two swapped by alias", PLAIN, seen(
        '.select("event_id", F.col("n").alias("user_id"), F.col("user_id").alias("n"), "event_time")'), NOTED,
        "+ Project", shows=has(user_id=40)),
    projection("added", PLAIN, seen('.withColumn("more", F.col("n"))'), BREAKS, "lacks"),
    projection("removed", PLAIN, seen('.drop("user_id")'), NOTED, "Project",
               but="and the column is null", shows=has(n=40, user_id=None)),
    projection("renamed", PLAIN, seen('.withColumnRenamed("user_id", "user")'), BREAKS, "lacks"),
    projection("in other letters (`USER_ID`)", PLAIN, seen('.withColumnRenamed("user_id", "USER_ID")'), NOTED,
               "Project", same=True),
    projection("of a type that the table cannot store", PLAIN, seen('.withColumn("n", F.array("n"))'), BREAKS,
               "cannot be stored"),
    projection("a wider number", PLAIN, seen('.withColumn("n", F.col("n").cast("long"))'), NOTED, "Project",
               same=True),
    projection("text for a number", PLAIN, seen('.withColumn("n", F.col("n").cast("string"))'), NOTED,
               "Project", same=True),
    projection("truth for a number", PLAIN, seen('.withColumn("n", F.col("n") > 2)'), BREAKS,
               "cannot be stored"),
    projection("a time for a number", PLAIN, seen('.withColumn("n", F.col("event_time"))'), BREAKS,
               "cannot be stored"),
    projection("a field added to a struct", seen(STRUCT.format(more="")), seen(STRUCT.format(
        more='"event_id", ')), BREAKS, "cannot be stored"),
    projection("a field of a struct removed", seen(STRUCT.format(more='"event_id", ')), seen(STRUCT.format(
        more="")), NOTED, "Project"),
)  # fmt: skip

# Filters, duplicates, aggregations, joins
filtered = of("filters")
FILTERS = (
    filtered("changed", seen('.where("n > 3")'), seen('.where("n > 5")'), NOTED, "+ Filter (n > 5)"),
    filtered("added", DISTINCT, pipeline(view=f'.where("n > 0"){DEDUPE}'), NOTED, "+ Filter (n > 0)"),
    filtered("removed", seen('.where("n > 0")'), PLAIN, NOTED, "- Filter (n > 0)"),
    filtered("moved before dropDuplicates", pipeline(view=f'{DEDUPE}.where("n > 2")'),
             pipeline(view=f'.where("n > 2"){DEDUPE}'), NOTED, "Filter"),
)  # fmt: skip
expected = of("expectations")
EXPECTING = PLAIN.replace("@dp.append_flow", "@dp.{expect}\n@dp.append_flow")


def expecting(expect: str) -> str:
    """Return a flow without state that expects this of its rows."""
    return EXPECTING.replace("{expect}", expect) + 'dp.create_streaming_table("aside")\n'


ODD = 'expect_or_drop("odd", "n % 2 = 1")'
EXPECTATIONS = (
    expected("added, which counts", PLAIN, expecting('expect("odd", "n % 2 = 1")'), NOTED,
             "other expectations ('odd')", same=True),
    expected("added, which drops", PLAIN, expecting(ODD), NOTED, "other expectations ('odd')",
             shows=lacks(n=40)),
    expected("removed", expecting(ODD), PLAIN, NOTED, "other expectations ('odd')", shows=has(n=40)),
    expected("its condition", expecting(ODD), expecting(ODD.replace("= 1", "= 0")), NOTED,
             "other expectations ('odd')", shows=lacks(n=41)),
    expected("`quarantine` added", expecting(ODD), expecting(ODD[:-1] + ', quarantine="aside")'), NOTED,
             "other expectations ('odd')", but="and sets aside", same=True),
    expected("`alert_above` added", expecting(ODD), expecting(ODD[:-1] + ", alert_above=0.1)"), SAME),
    expected("a condition that does not parse", PLAIN, expecting('expect("odd", "n >")'), BREAKS,
             "which Spark refuses"),
)  # fmt: skip
distinct = of("dropping duplicates")
DUPLICATES = (
    distinct("removed", DISTINCT, PLAIN, BREAKS, "was removed or replaced"),
    distinct("added", PLAIN, DISTINCT, BREAKS),
    distinct("by a column more", DISTINCT, pipeline(view='.dropDuplicates(["event_id", "n"])'), BREAKS,
             "key columns"),
    distinct("by another column of the same type", pipeline(view='.dropDuplicates(["user_id"])'),
             pipeline(view='.dropDuplicates(["n"])'), NOTED, "Deduplicate",
             but="and finds keys of the one among those of the other", come=(6, 41), shows=lacks(n=6)),
    distinct("within the watermark", DISTINCT,
             pipeline(view=MARKED.format(delay="1 hour") + '.dropDuplicatesWithinWatermark(["event_id"])'),
             BREAKS),
    distinct("after a watermark that is new", DISTINCT, pipeline(view=MARKED.format(delay="1 hour") + DEDUPE),
             NOTED, "EventTimeWatermark"),
)  # fmt: skip
WINDOWS = MARKED + (
    '.groupBy(F.window("event_time", {length}).alias("w"){by}).agg({many})'
    '.select(F.col("w.start").alias("n"), "many")'
)


def windows(
    delay: str = "10 seconds",
    length: str = '"10 seconds"',
    by: str = "",
    many: str = 'F.count("*").alias("many")',
) -> str:
    """Declare counts of windows."""
    return pipeline(view=WINDOWS.format(delay=delay, length=length, by=by, many=many))


MANY = 'F.{}.alias("many")'
SUM = '(F.count("*") + F.max("n")).alias("many")'
grouped = of("aggregations")
AGGREGATIONS = (
    grouped("length of a window", windows(), windows(length='"20 seconds"'), NOTED, "20000000"),
    grouped("windows that overlap", windows(), windows(length='"10 seconds", "5 seconds"'), BREAKS,
            "key columns"),
    grouped("delay of the watermark", windows(), windows(delay="1 minute"), NOTED, "EventTimeWatermark"),
    grouped("no watermark any more", windows(), windows().replace(
        MARKED.format(delay="10 seconds"), ""), BREAKS),
    grouped("grouping key added", windows(), windows(by=', "user_id"'), BREAKS, "key columns"),
    grouped("another grouping key of the same type", windows(by=', "user_id"'), windows(by=', "n"'), NOTED,
            "Aggregate"),
    grouped("aggregate of another type", windows(), windows(many=MANY.format('max("event_id")')), BREAKS),
    grouped("aggregate of the same type", windows(many=MANY.format('max("n")')),
            windows(many=MANY.format('min("n")')), NOTED, "min(n)", but="and mixes both",
            come=(22, 41), shows=has(many=21)),
    grouped("aggregate added", windows(), windows(many=SUM), BREAKS),
    grouped("aggregate removed", windows(many=SUM), windows(), BREAKS),
    grouped("removed", windows(), PLAIN, BREAKS),
)  # fmt: skip
JOIN = """
    left = events.withWatermark("event_time", "10 seconds").select("n", F.col("event_time").alias("at"){more})
    right = again.withWatermark("event_time", "10 seconds")
    right = right.select(F.col("n").alias("other"), F.col("event_time").alias("until"))
    near = F.expr("{on} AND until BETWEEN at AND at + INTERVAL {bound} SECONDS")
    return left.join(right, near, "{how}").select("n", "other")
"""


def joined(how: str = "inner", bound: int = 5, on: str = "other = n + 3", more: str = "") -> str:
    """Declare a stream that is joined with itself."""
    text = pipeline(
        view="",
        more=f'dp.create_source("again_raw", format="json", path="{{data}}/events", schema="{SCHEMA}")',
        sources=("distinct_events", "again_raw"),
        parameters="events, again",
    )
    return text.rpartition("    return ")[0] + JOIN.format(how=how, bound=bound, on=on, more=more)[1:]


join = of("joins of streams")
KEPT = '.select("n", "other")'
JOINS = (
    join("inner to left outer", joined(), joined("left_outer"), NOTED, "LeftOuter"),
    join("left outer to inner", joined("left_outer"), joined(), NOTED, "Inner"),
    join("time bound", joined(), joined(bound=50), NOTED, "INTERVAL"),
    join("key computed otherwise", joined(), joined(on="other = n + 4"), NOTED, "+ 4"),
    join("key of another type", joined(), joined(on="string(other) = string(n + 3)"), BREAKS),
    join("key added", joined(), joined(on="other = n + 3 AND other % 2 = n % 2"), BREAKS),
    join("column of a side, which waits in the state, added", joined(),
         joined(more=', "user_id"').replace(KEPT, '.select("n", F.col("user_id").alias("other"))'), BREAKS),
)  # fmt: skip

# State of one's own making
PANDAS = """
    import pandas as pd

    def count(key, rows, state):
        found = (state.get[0] if state.exists else 0) + {by} * sum(len(part) for part in rows)
        state.update((found,))
        yield pd.DataFrame({{"user_id": [key[0]], "n": [int(found)]}})

    by_user = events.groupBy("user_id")
    return by_user.applyInPandasWithState(count, "user_id INT, n INT", "{state}", "append", {timeout})
"""


def in_pandas(state: str = "count INT", by: str = "1", timeout: str = '"NoTimeout"') -> str:
    """Count the events of each user, by applyInPandasWithState."""
    return PLAIN.rpartition("    return ")[0] + PANDAS[1:].format(state=state, by=by, timeout=timeout)


own = of("state of one's own making")
STATES = (
    own("transformWithState: its code", numbering(""), numbering("", by=2), NOTED, "",
        but="and the state stays", shows=has(n=41, user_id=3)),
    own("transformWithState: type of a variable", numbering(""), numbering("", state="count STRING"), BREAKS),
    own("transformWithState: rows of its initial state", numbering(), numbering(
        ROWS.replace("10", "70"), COLUMNS), NOTED, "keeps what it was given", same=True),
    own("transformWithState: an initial state, where it had none", numbering(""), numbering(), NOTED,
        "keeps what it was given", same=True),
    own("applyInPandasWithState: its code", in_pandas(), in_pandas(by="2"), NOTED, "",
        but="and the state stays", shows=has(n=3, user_id=6)),
    own("applyInPandasWithState: schema of the state", in_pandas(), in_pandas("count STRING"), BREAKS),
    own("applyInPandasWithState: kind of timeout", in_pandas(), in_pandas(
        timeout='"ProcessingTimeTimeout"'), BREAKS),
)  # fmt: skip

# AUTO CDC
CHANGES = """
dp.create_auto_cdc_flow(
    name="clean_events", target="events", source="distinct_events", trigger="200 milliseconds",
    keys={keys}, sequence_by={sequence}, {more}
)
"""


def changes(more: str = "", keys: str = '["user_id"]', sequence: str = '"n"', view: str = "") -> str:
    """Declare a flow that applies its events as changes of users."""
    text = pipeline(view=view).partition("@dp.append_flow")[0]
    return text + CHANGES[1:].format(keys=keys, sequence=sequence, more=more)


TRACKED = 'stored_as_scd_type=2, track_history_column_list=["{}"]'
NOT_TIME = 'except_column_list=["event_time"]'
cdc = of("AUTO CDC")
CDC = (
    cdc("keys", changes(), changes(keys='["event_id"]'), BREAKS, "keys"),
    cdc("`sequence_by`, of the same type", changes(), changes(sequence='"user_id"'), NOTED, "sequence_by",
        but="and compares sequences of both", shows=lacks(n=41)),
    cdc("`sequence_by`, of another type", changes(), changes(sequence='"event_time"'), BREAKS,
        "is ordered by"),
    cdc("`sequence_by`, a column more", changes(), changes(sequence='["n", "event_time"]'), BREAKS,
        "is ordered by"),
    cdc("`apply_as_deletes`", changes(), changes('apply_as_deletes="n = 41"'), NOTED, "apply_as_deletes",
        shows=lacks(user_id=6)),
    cdc("`apply_as_truncates`", changes(), changes('apply_as_truncates="n = 40"'), NOTED,
        "apply_as_truncates", shows=lacks(n=4)),
    cdc("`ignore_null_updates`", changes(), changes("ignore_null_updates=True"), BREAKS,
        "ignore_null_updates"),
    cdc("a column less", changes(), changes(NOT_TIME), NOTED, "except_column_list",
        but="and the column is null in rows that change", shows=has(n=41, event_time=None)),
    cdc("a column more", changes(NOT_TIME), changes(), NOTED, "except_column_list",
        but="and the table gets the column",
        shows=lambda rows: rows[0].keys() >= {"event_time"}),
    cdc("type of a column", changes(), changes(view='.withColumn("event_id", F.array("event_id"))'), BREAKS,
        "of type"),
    cdc("SCD type", changes(), changes("stored_as_scd_type=2"), BREAKS, "SCD type"),
    cdc("tracked columns", changes(TRACKED.format("n")), changes(TRACKED.format("event_id")), BREAKS,
        "tracks"),
    cdc("rows appended from now on", changes(), PLAIN, NOTED, "rows of both",
        but="and a key has several rows",
        shows=lambda rows: sum(row["user_id"] == 6 for row in rows) == 2),
    cdc("changes applied from now on", PLAIN, changes(), BREAKS, "no AUTO CDC flow made it"),
)  # fmt: skip

# Output modes
SUMS = (
    '.withWatermark("event_time", "10 seconds").groupBy("user_id", "event_time").agg(F.sum("n").alias("n"))'
)


def results(mode: str, keys: str = '"user_id", "event_time"') -> str:
    """Declare a flow of sums in an output mode, all of which take its query."""
    text = pipeline(flow=f"events{SUMS}", view="").replace("@dp.append_flow", f"@dp.{mode}_flow")
    return text.replace('table("events"', f'table("events", keys=[{keys}]') if mode == "update" else text


of_mode = of("output modes")
MODES = (
    of_mode("append to update", results("append"), results("update"), BREAKS, "no AUTO CDC flow made it"),
    of_mode("append to complete", results("append"), results("complete"), BREAKS, "no complete flow made it"),
    of_mode("update to append", results("update"), results("append"), NOTED, "mode append, and had update",
            but="and a key may have several rows"),
    of_mode("update to complete", results("update"), results("complete"), BREAKS, "no complete flow made it"),
    of_mode("complete to append", results("complete"), results("append"), NOTED,
            "mode append, and had complete", but="and a result may be there twice"),
    of_mode("complete to update", results("complete"), results("update"), BREAKS, "no AUTO CDC flow made it"),
    of_mode("keys of an update flow", results("update"), results("update", '"event_time", "user_id"'), BREAKS,
            "has the keys"),
)  # fmt: skip

CATALOGUE: tuple[Change, ...] = (
    DUPLICATES[0], FILTERS[0], SOURCES[0],
    *SOURCES[1:], *FOLLOWED, *TABLES, *SINKS, *PROJECTIONS, *FILTERS[1:], *EXPECTATIONS, *DUPLICATES[1:],
    *AGGREGATIONS, *JOINS, *STATES, *CDC, *MODES,
    *CODE, *SETTINGS,
)  # fmt: skip
"""All changes; the first three are tried by ``make test``."""

NAMED = "clean_events"
name = of("names")
BY_NAME = (
    name("the flow renamed", PLAIN, PLAIN.replace(f'name="{NAMED}"', 'name="cleaned"'), BREAKS,
         "streamkeeper rename", then=REFUSES, but="and keeps its last declaration"),
    name("the flow removed", PLAIN + OTHER, PLAIN.partition("@dp.append_flow")[0] + OTHER, NOTED,
         "declared no more", then=REFUSES, but="and table and state stay"),
)  # fmt: skip
"""Changes that a flow's name alone tells."""


def filled(text: str, topic: str, brokers: str, other: str = "") -> str:
    """Return the text of a flow with its topics, if it reads Kafka or writes to it."""
    return text.replace(TOPIC, topic).replace(OTHER_TOPIC, other).replace(BROKERS, brokers)
