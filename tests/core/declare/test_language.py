"""What a pipeline file may declare, and how it is told what it may not: file, line, what was found, what is
allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from streamkeeper import pipelines as dp
from streamkeeper.checkpoint.log_entries import CHANGELOG, PROVIDER, WATERMARK_POLICY
from streamkeeper.declare.cdc_spec import CdcSpec
from streamkeeper.declare.model import AutoCdcFlow, pipeline_from_json, pipeline_to_json
from streamkeeper.errors import DeclarationError
from streamkeeper.manifest.import_file import fingerprint
from tests.worlds.pipelines import TAIL, load

GOOD = """
dp.create_source("raw", format="json", path="{data}/raw", schema="id INT", \
options={"maxFilesPerTrigger": 5, "multiLine": True})
dp.create_streaming_table("t", comment="c", table_properties={"delta.appendOnly": True}, \
partition_cols=["day"])

@dp.temporary_view(sources=["raw"])
def seen(raw):
    return raw

@dp.append_flow(name="f", target="t", sources=["seen"], trigger="2 seconds", \
spark_conf={"spark.sql.shuffle.partitions": 2})
def f(seen):
    return seen
"""


def test_a_pipeline_is_what_its_file_declares(tmp_path: Path) -> None:
    pipeline = load(tmp_path, GOOD)
    source, view, table, flow = pipeline.sources[0], pipeline.views[0], pipeline.tables[0], pipeline.flows[0]
    assert (pipeline.name, source.path, source.schema) == ("p", "/data/raw", "id INT")
    assert source.options == {"maxFilesPerTrigger": "5", "multiLine": "true"}
    assert (view.sources, table.partition_cols) == (("raw",), ("day",))
    assert table.properties == {"delta.appendOnly": "true"}
    assert (flow.target, flow.sources, flow.trigger) == ("t", ("seen",), "2 seconds")
    assert flow.spark_conf == {"spark.sql.shuffle.partitions": "2"}
    assert pipeline.inputs(flow) == (source, view)
    assert pipeline.sources_of(flow) == (source,)
    assert str(view.location) == "p.py, line 6"


def test_a_decorated_function_stays_a_function_that_can_be_tested_by_itself() -> None:
    @dp.temporary_view(sources=["raw"])
    def doubled(raw: int) -> int:
        return 2 * raw

    assert doubled(21) == 42


def test_a_pipeline_goes_to_json_and_back_without_its_code(tmp_path: Path) -> None:
    plain = load(tmp_path, GOOD)
    assert pipeline_from_json(pipeline_to_json(plain)) == plain


def test_a_source_may_leave_its_schema_out(tmp_path: Path) -> None:
    assert load(tmp_path, 'dp.create_source("raw", format="csv", path="/x")' + TAIL).sources[0].schema is None


def test_a_rate_source_has_neither_path_nor_schema(tmp_path: Path) -> None:
    rate = 'dp.create_source("raw", format="rate", options={"rowsPerSecond": 5})'
    [source] = load(tmp_path, rate + TAIL).sources
    assert (source.path, source.schema, source.reads_files) == (None, None, False)


@pytest.mark.parametrize("path", ["/abs/p", "{data}/p", "{data}/p/", "s3://b/p", "{data}/a b/*.json"])
def test_a_path_may_be_absolute_below_data_or_a_url(path: str, tmp_path: Path) -> None:
    found = load(tmp_path, f"dp.create_source('raw', format='json', path={path!r})" + TAIL).sources[0].path
    assert found == path.format(data="/data").rstrip("/")


SOURCE = 'dp.create_source("raw", format="json", path="/x")'


def flow(*more: str) -> str:
    given = ", ".join(("target='t'", "sources=['raw']", *more))
    return f"{SOURCE}\n@dp.append_flow({given})\ndef f(raw): return raw"


RAW = '"raw", format="json", path="/x"'
RESERVED = ("path", "Schema", "startingOffsets", "startingVersion", "startingTimestamp", "checkpointLocation")
BAD_SOURCES = {
    # what is declared, what the message says
    "unknown format": (
        '"raw", format="xls", path="/x"',
        "has format 'xls'. Allowed are json, csv, parquet, orc, text, kafka, delta, rate",
    ),
    "no path": ('"raw", format="json"', "reads json files but has no path"),
    "relative path": ('"raw", format="json", path="raw/x"', "the path 'raw/x' of source raw is relative"),
    "unknown placeholder": (
        '"raw", format="json", path="{here}/x"',
        "'{here}/x' .* cannot be filled in .* Only {data} is known",
    ),
    "positional placeholder": ('"raw", format="json", path="{}/x"', "Only {data} is known"),
    "rate with a path": ('"raw", format="rate", path="/x"', "which takes no path"),
    "rate with a schema": ('"raw", format="rate", schema="a INT"', "which brings its own schema"),
    "schema is no text": (RAW + ', schema={"id": "INT"}', "the schema of source raw is {'id': 'INT'}"),
    "slash in a name": ('"a/b", format="json", path="/x"', "the source name 'a/b' cannot be used"),
    "newline after a name": ('"a\\n", format="json", path="/x"', "the source name 'a.n' cannot be used"),
    "name is no text": ('None, format="json", path="/x"', "the source name None cannot be used"),
    "name too long": ('"a" * 101, format="json", path="/x"', "is at most 100 long"),
    "digit first": ('"1a", format="json", path="/x"', "starts with a letter"),
    "options no dict": (RAW + ', options="a=1"', "the options of the source raw are 'a=1'. Give a dict"),
    "option no text": (
        RAW + ', options={"a": [1]}',
        r"the option 'a': \[1\] of the source raw cannot be used",
    ),
    **{
        f"reserved option {key}": (
            f'{RAW}, options={{"{key}": "1"}}',
            f"the option '{key}' of the source raw is Streamkeeper's own to set",
        )
        for key in RESERVED
    },
    "wrong parameter": (
        '"raw", fmt="json"',
        "create_source takes no fmt: correct the name, or leave it out. It takes name, format, path",
    ),
    "missing parameter": ('"raw"', "TypeError: .*format"),
}
BAD_TABLES = {
    "table with two dots": ('"a.b.c"', "the table name 'a.b.c' has more than one dot"),
    "table with a slash": ('"a/b"', "the table name 'a/b' cannot be used"),
    "table out of the warehouse": ('"...t"', "the table name '' cannot be used"),
    "table where backups lie": ('"__Backups.t"', "the table name '__Backups' cannot be used"),
    "one column": ('"t", partition_cols="day"', "the partition_cols of table t are 'day'. Give a list"),
    "comment is no text": ('"t", comment=5', "the comment of table t is 5, of type int"),
    "keys that are a text": (
        '"t", keys="id"',
        r"the table t has keys='id'. Give a list of column names, such as \['id'\]",
    ),
    "what becomes of rows": (
        '"t", existing_rows="drop"',
        "the table t has existing_rows='drop'. Allowed is 'keep'; leave it out",
    ),
    "a table's format": (
        '"t", format="iceberg"',
        "takes no format: where rows go is declared by itself.*dp.create_sink",
    ),
}
BAD_SINKS = {
    "an address of no store": (
        '"out", "json", {"path": "http://127.0.0.1:9/x"}',
        "the path of sink out: 'http://127.0.0.1:9/x' is neither a path nor the URL of a store",
    ),
    "a sink of another format": (
        '"out", "jdbc", {}',
        "the sink out has the format 'jdbc'. Allowed are kafka, parquet, json, csv; .*foreach_batch_sink",
    ),
    "a Kafka sink without a broker": (
        '"out", "kafka", {"topic": "t"}',
        "the Kafka sink out names no broker. Give the option 'kafka.bootstrap.servers'",
    ),
    "a Kafka sink with a checkpoint": (
        '"out", "kafka", {"kafka.bootstrap.servers": "b:1", "checkpointLocation": "/c"}',
        "the Kafka sink out has the option 'checkpointLocation': each generation of a flow has a checkpoint",
    ),
    "a Kafka sink with an unknown option": (
        '"out", "kafka", {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}',
        "the Kafka sink out has the option 'subscribe'. Allowed are topic, and those of Kafka's producer",
    ),
    "a Kafka sink with a password": (
        '"out", "kafka", {"kafka.bootstrap.servers": "b:1", "kafka.ssl.key.password": "x"}',
        "the sink out has a secret in its option 'kafka.ssl.key.password'.*'{env:NAME}' here",
    ),
    "files with a password": (
        '"out", "json", {"path": "/out", "password": "hunter2"}',
        "the sink out has a secret in its option 'password'",
    ),
    "files without a path": ('"out", "parquet"', "the sink out has no path. Give the folder of its files"),
    "a relative folder": ('"out", "json", {"path": "out"}', "the path 'out' of sink out is relative"),
}
BAD: dict[str, tuple[str, int, str]] = {
    # what is declared, the line that is to blame, what the message says
    **{case: (f"dp.create_source({given})", 2, said) for case, (given, said) in BAD_SOURCES.items()},
    **{case: (f"dp.create_streaming_table({given})", 2, said) for case, (given, said) in BAD_TABLES.items()},
    **{case: (f"dp.create_sink({given})", 2, said) for case, (given, said) in BAD_SINKS.items()},
    "source twice": (SOURCE + "\n" + SOURCE, 3, "the name raw is declared at p.py, line 2 already"),
    "view as a source": (
        SOURCE + "\n@dp.temporary_view(sources=['raw'], name='raw')\ndef v(raw): return raw",
        3,
        "the name raw is declared at p.py, line 2",
    ),
    "table twice": (
        'dp.create_streaming_table("t")\ndp.create_streaming_table("t")',
        3,
        "the table t is declared at p.py, line 2 already",
    ),
    "table in a table": (
        'dp.create_streaming_table("s")\ndp.create_streaming_table("s.t")',
        3,
        "s.t and the table s .* would lie in one another's folder",
    ),
    "table around a table": (
        'dp.create_streaming_table("s.t")\ndp.create_streaming_table("s")',
        3,
        "would lie in one another's folder",
    ),
    "view of nothing": (
        "@dp.temporary_view(sources=[])\ndef v(): return 1",
        2,
        r"the sources of view v are \[\]. Give a list",
    ),
    "sources as a text": (
        "@dp.temporary_view(sources='raw')\ndef v(raw): return raw",
        2,
        "the sources of view v are 'raw'. Give a list",
    ),
    "too few parameters": (
        SOURCE + "\n@dp.temporary_view(sources=['raw', 'x'])\ndef v(raw): return raw",
        3,
        r"view v has 2 sources \(raw, x\) but its function takes \(raw\)",
    ),
    "too many parameters": (
        flow().replace("f(raw)", "f(raw, more)"),
        3,
        "flow f has 1 sources .* missing a required argument: 'more'",
    ),
    "unknown source": (
        SOURCE + "\n@dp.temporary_view(sources=['row'])\ndef v(row): return row",
        3,
        "v reads 'row', which this file does not declare. Declared are raw, v",
    ),
    "unknown target": (flow(), 3, "f writes to 't', .* Declared are none. Add dp.create_streaming_table"),
    "flow twice": (
        SOURCE + TAIL + "@dp.append_flow(target='t', sources=['raw'], name='f')\ndef g(raw): return raw",
        7,
        "the flow f is declared at p.py, line 4 already",
    ),
    "bad trigger": (flow("trigger='often'"), 3, "the trigger 'often'. Allowed is a number and a unit"),
    "trigger of nothing": (flow("trigger='0 seconds'"), 3, "the trigger '0 seconds'"),
    "circle": (
        "\n".join(
            f"@dp.temporary_view(sources=['{reads}'])\ndef {name}({reads}): return {reads}"
            for name, reads in ("ab", "bc", "ca")
        ),
        2,
        "views read one another in a circle: a → b → c → a",
    ),
    "circle of one": ("@dp.temporary_view(sources=['a'])\ndef a(a): return a", 2, "in a circle: a → a"),
    "flow named like our folder": (flow("name='Ledger'"), 3, "the flow name 'Ledger' cannot be used"),
    "raises": ("1 / 0", 2, "the file raises ZeroDivisionError: division by zero. Correct it"),
    "exits": ("raise SystemExit(3)", 2, "the file raises SystemExit: 3"),
    "does not parse": ("def f(:", 2, "the file raises SyntaxError"),
    "missing module": (
        "x = 1\nimport no_such_module_anywhere",
        3,
        "ModuleNotFoundError: No module named 'no_such_module_anywhere'.*`streamkeeper check` again",
    ),
    "two flows into a sink of files": (
        f'{SOURCE}\ndp.create_sink("out", "json", {{"path": "/out"}})\n'
        '@dp.append_flow(target="out", sources=["raw"])\ndef f(raw): ...\n'
        '@dp.append_flow(target="out", sources=["raw"])\ndef g(raw): ...',
        6,
        r"the flow g writes the sink out, as f does \(p.py, line 4\). Spark's log of a folder has room",
    ),
    "an update flow into a Kafka sink": (
        f'{SOURCE}\ndp.create_sink("out", "kafka", {{"kafka.bootstrap.servers": "b:1"}})\n'
        '@dp.update_flow(target="out", sources=["raw"])\ndef f(raw): ...',
        4,
        r"the flow f writes the sink out \(p.py, line 3\), which takes rows that are appended",
    ),
    "a sink's function with two parameters": (
        '@dp.foreach_batch_sink(name="out")\ndef out(df, batch): ...',
        2,
        "the function of the sink out must take three parameters: batch, batch_id and transaction",
    ),
    "an update flow into a sink": (
        f"{SOURCE}\n@dp.foreach_batch_sink()\ndef out(batch, number, transaction): ...\n"
        '@dp.update_flow(target="out", sources=["raw"])\ndef f(raw): ...',
        5,
        r"the flow f writes the sink out \(p.py, line 3\), which takes rows that are appended",
    ),
    "an update flow of a table without keys": (
        f'{SOURCE}\ndp.create_streaming_table("t")\n'
        '@dp.update_flow(target="t", sources=["raw"])\ndef f(raw): ...',
        4,
        r"the update flow f writes t, which has no keys \(p.py, line 3\).*keys=\['…'\]",
    ),
    "keys of a table that is appended to": (
        f'{SOURCE}\ndp.create_streaming_table("t", keys=["id"])\n'
        '@dp.append_flow(target="t", sources=["raw"])\ndef f(raw): ...',
        3,
        "the table t has keys, and the flow f .* has no use for them. keys are for update flows",
    ),
    "two flows of a table that is replaced": (
        f'{SOURCE}\ndp.create_streaming_table("t")\n'
        '@dp.complete_flow(target="t", sources=["raw"])\ndef f(raw): ...\n'
        '@dp.append_flow(target="t", sources=["raw"])\ndef g(raw): ...',
        6,
        "the flow g writes t, which the complete flow f .* writes alone. It would remove the other's rows",
    ),
    "an output mode": (
        flow("output_mode='complete'"),
        3,
        (
            "append_flow takes no output_mode: the kind of the flow is its output mode.*"
            " It takes target, sources, name"
        ),
    ),
    "a query of the function's own": (
        (
            f'{SOURCE}\n@dp.append_flow(target="t", sources=["raw"])\ndef f(raw):\n    q = raw.dropna()\n'
            '    return q.writeStream.outputMode("update").foreachBatch(print)'
        ),
        6,
        ("the function of flow f uses writeStream: .*is declared by dp.foreach_batch_sink. Return the Data"),
    ),
    "a materialized view": (
        "@dp.materialized_view\ndef v(): ...",
        2,
        "materialized_view is not there: tables are not made by functions",
    ),
    "a name that no one has": (
        "dp.create_strem()",
        2,
        "AttributeError: dp.create_strem is not there. Allowed are append_flow, complete_flow, configure",
    ),
}


@pytest.mark.parametrize(("body", "line", "message"), BAD.values(), ids=BAD.keys())
def test_what_is_not_allowed_is_refused_with_its_place(
    body: str, line: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DeclarationError, match=rf"^p\.py, line {line}: .*{message}"):
        load(tmp_path, body)


def test_a_file_without_a_flow_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"^p\.py: no flow is declared"):
        load(tmp_path, SOURCE)


@pytest.mark.parametrize("name", ["my-pipe.py", "a b.py", "1st.py", "it's.py", "tables.py", "Manifests.py"])
def test_a_file_whose_name_cannot_name_a_pipeline_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=rf"^{re.escape(name)}, line 1: .*{re.escape(name[:-3])}"):
        load(tmp_path, GOOD, name)


def test_a_table_that_would_forget_its_batches_is_refused() -> None:
    forgets = "delta.setTransactionRetentionDuration"
    with pytest.raises(
        DeclarationError, match=f"sets {forgets}, by which Delta forgets which batches it has"
    ):
        dp.create_streaming_table("t", table_properties={forgets: "interval 7 days"})


OPTIONS = """
mail = dp.notifier("airflow.providers.smtp.notifications.smtp.SmtpNotifier", \
to="ops@example.org", subject="{{ alert.subject }}")
dp.configure_pipeline(shared_driver=True, notifiers=[mail], no_progress_after="2 hours", \
rehearse=["rewind"], owner="team a", tags=["silver"], pool="team_a", connection="spark_a")
"""


def test_a_pipeline_says_once_what_holds_for_all_its_flows(tmp_path: Path) -> None:
    pipeline = load(tmp_path, GOOD + OPTIONS)
    assert (pipeline.shared_driver, pipeline.no_progress_after) == (True, 7200.0)
    assert pipeline.rehearse == ("rewind",)
    names = (pipeline.owner, pipeline.tags, pipeline.pool, pipeline.connection)
    assert names == ("team a", ("silver",), "team_a", "spark_a")
    assert pipeline.notifiers[0].classpath == "airflow.providers.smtp.notifications.smtp.SmtpNotifier"
    assert pipeline.notifiers[0].arguments == {"to": "ops@example.org", "subject": "{{ alert.subject }}"}
    assert pipeline_from_json(pipeline_to_json(pipeline)) == pipeline


def prints(folder: Path, body: str) -> str:
    """Give the fingerprint of the first flow."""
    pipeline = load(folder, body)
    return fingerprint(pipeline, pipeline.flows[0])


def test_who_is_told_does_not_make_a_flow_another_one_but_its_driver_does(tmp_path: Path) -> None:
    told = GOOD + "dp.configure_pipeline(no_progress_after=None, rehearse=['rewind'], owner='a')"
    assert prints(tmp_path, GOOD) == prints(tmp_path, told)
    assert prints(tmp_path, GOOD) != prints(tmp_path, GOOD + "dp.configure_pipeline(shared_driver=True)")


BAD_OPTIONS = {
    "twice": (
        "dp.configure_pipeline()\ndp.configure_pipeline()",
        "p.py, line 3: the pipeline is configured at p.py, line 2 already",
    ),
    "not a truth value": (
        "dp.configure_pipeline(shared_driver=1)",
        "shared_driver is 1. Allowed are True and",
    ),
    "a name": ("dp.configure_pipeline(notifiers=['mail'])", r"are \['mail'\]. Give a list of dp.notifier"),
    "no number": (
        "dp.configure_pipeline(no_progress_after='soon')",
        "is 'soon'. Allowed is a number and a unit",
    ),
    "a rehearsal of what has none": (
        "dp.configure_pipeline(rehearse=['clean_up'])",
        "rehearse has 'clean_up'. Give a list of recoveries that can be rehearsed: reset_checkpoint",
    ),
    "no list": ("dp.configure_pipeline(rehearse='rewind')", "rehearse has 'rewind'. Give a list"),
    "a pool with a slash": (
        "dp.configure_pipeline(pool='a/b')",
        r"line 2: pool is 'a/b'. Allowed are 1 to 100",
    ),
    "an empty owner": ("dp.configure_pipeline(owner='')", "owner is ''. Allowed are 1 to 100 letters"),
    "no list of tags": ("dp.configure_pipeline(tags='a')", r"tags is 'a'. Give a list of names, such as"),
    "a tag that is none": (
        "dp.configure_pipeline(tags=['a', 1])",
        "a tag is 1. Allowed are 1 to 100 letters",
    ),
    "a connection with blanks": (
        "dp.configure_pipeline(connection='spark a')",
        "connection is 'spark a'. Leave the blanks out",
    ),
    "the login of our own tasks": (
        "dp.configure_pipeline(connection='streamkeeper_airflow')",
        "connection: the connection 'streamkeeper_airflow' is Streamkeeper's own. Use one of another name",
    ),
    "no path": ("dp.notifier('mail')", "the notifier 'mail' is no path of a class"),
    "a password": ("dp.notifier('a.B', password='abc')", "a.B has a secret in its argument 'password'"),
    "a token in a value": (
        "dp.notifier('a.B', headers={'Authorization': 'Bearer 123456789'})",
        "the notifier a.B has a secret in its argument 'headers'. What is declared is kept",
    ),
    "a webhook's address": (
        "dp.notifier('a.B', url='https://hooks.slack.com/services/T0/B0/x')",
        "the notifier a.B has a secret in its argument 'url'",
    ),
    "no JSON": ("dp.notifier('a.B', to={1, 2})", "the arguments of the notifier a.B are not JSON values"),
}


@pytest.mark.parametrize(("body", "said"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_a_pipelines_options_are_checked(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        load(tmp_path, body)


def test_a_flow_may_say_that_it_would_rather_be_retried(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD).flows[0].on_failure == "park"
    retry = GOOD.replace('name="f"', 'name="f", on_failure="retry"')
    assert load(tmp_path, retry).flows[0].on_failure == "retry"
    assert load(tmp_path, retry.replace('"retry"', '"park", park_after=5')).flows[0].park_after == 5
    with pytest.raises(DeclarationError, match=r"has on_failure 'ignore'. Allowed are 'park' and 'retry'"):
        load(tmp_path, retry.replace('"retry"', '"ignore"'))


CHANGES = """
dp.create_source("cdc", format="json", path="/x", schema="id INT, seq BIGINT, op STRING")
dp.create_streaming_table("t")
"""


def auto_cdc(**changes: str) -> str:
    """Write a declaration of an AUTO CDC flow; each value is Python's, as text."""
    flow = {"name": "'f'", "target": "'t'", "source": "'cdc'", "keys": "['id']", "sequence_by": "'seq'"}
    values = {**flow, **changes}
    given = ", ".join(f"{name}={value}" for name, value in values.items())
    return f"{CHANGES}dp.create_auto_cdc_flow({given})\n"


def cdc_flow(folder: Path, **changes: str) -> AutoCdcFlow:
    flow = load(folder, auto_cdc(**changes)).flows[0]
    assert isinstance(flow, AutoCdcFlow)
    return flow


def append(**changes: str) -> str:
    """Write a declaration of an append flow; each value is Python's, as text."""
    more = "".join(f", {name}={value}" for name, value in changes.items())
    return f"{CHANGES}@dp.append_flow(target='t', sources=['cdc']{more})\ndef f(cdc):\n    return cdc\n"


@pytest.mark.parametrize("declare", [append, auto_cdc], ids=["append", "auto cdc"])
def test_a_flow_may_name_its_state_store_and_its_watermark_policy(
    declare: Callable[..., str], tmp_path: Path
) -> None:
    (flow,) = load(tmp_path, declare(state_store='"rocksdb"', watermark_policy='"max"')).flows
    assert flow.spark_conf == {
        PROVIDER: "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        CHANGELOG: "true",
        WATERMARK_POLICY: "max",
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state_store": '"memory"'}, "has state_store 'memory'. Allowed are default, rocksdb."),
        ({"watermark_policy": "0"}, "has watermark_policy 0. Allowed are min, max."),
        (
            {"state_store": '"rocksdb"', "spark_conf": f'{{"{PROVIDER}": "x.Mine"}}'},
            f"has state_store 'rocksdb' and sets {PROVIDER} to 'x.Mine', which state_store sets. Leave one",
        ),
    ],
    ids=["store", "policy", "both"],
)
def test_a_state_store_or_policy_that_is_unknown_is_refused(
    changes: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(DeclarationError) as error:
        load(tmp_path, append(**changes))
    assert said in str(error.value)
    assert str(error.value).startswith("p.py, line ")


def test_an_auto_cdc_flow_is_what_its_declaration_says(tmp_path: Path) -> None:
    flow = cdc_flow(
        tmp_path,
        apply_as_deletes="\"op = 'DELETE'\"",
        apply_as_truncates="\"op = 'TRUNCATE'\"",
        except_column_list="['op', 'seq']",
        trigger="'2 seconds'",
        on_failure="'retry'",
    )
    assert flow.spec == CdcSpec(
        keys=("id",),
        sequence_by=("seq",),
        apply_as_deletes="op = 'DELETE'",
        apply_as_truncates="op = 'TRUNCATE'",
        except_column_list=("op", "seq"),
    )
    assert (flow.target, flow.sources) == ("t", ("cdc",))
    assert (flow.trigger, flow.on_failure, flow.once) == ("2 seconds", "retry", False)


SPECS: dict[str, tuple[dict[str, str], CdcSpec]] = {
    "several sequence columns": ({"sequence_by": "['day', 'seq']"}, CdcSpec(("id",), ("day", "seq"))),
    "a literal": ({"sequence_by": "0"}, CdcSpec(("id",), (), 0)),
    "several keys": ({"keys": "('id', 'part')"}, CdcSpec(("id", "part"), ("seq",))),
    "type 2 as a text": ({"stored_as_scd_type": "'2'"}, CdcSpec(("id",), ("seq",), scd_type=2)),
    "type 1 as a text": ({"stored_as_scd_type": "'1'"}, CdcSpec(("id",), ("seq",))),
    "history of some columns": (
        {"stored_as_scd_type": "2", "track_history_except_column_list": "['note']"},
        CdcSpec(("id",), ("seq",), scd_type=2, track_history_except_column_list=("note",)),
    ),
    "columns that are stored": (
        {"column_list": "['ID', 'n']"},
        CdcSpec(("id",), ("seq",), column_list=("ID", "n")),
    ),
    "nulls that change nothing": (
        {"ignore_null_updates": "True"},
        CdcSpec(("id",), ("seq",), ignore_null_updates=True),
    ),
}


@pytest.mark.parametrize(("changes", "spec"), SPECS.values(), ids=SPECS.keys())
def test_what_an_auto_cdc_flow_may_be_given(changes: dict[str, str], spec: CdcSpec, tmp_path: Path) -> None:
    assert cdc_flow(tmp_path, **changes).spec == spec


BAD_CDC: dict[str, tuple[dict[str, str], str]] = {
    # what is declared, what the message says
    "no key": ({"keys": "[]"}, r"has keys=\[\]. Give a list of column names"),
    "keys as a text": ({"keys": "'id'"}, "has keys='id'. Give a list of column names"),
    "key is no text": ({"keys": "[1]"}, "has 1 in keys. Give the names of columns as texts"),
    "key twice": ({"keys": "['id', 'ID']"}, "the flow f is contradictory: keys names ID twice"),
    "blank key": ({"keys": "[' ']"}, "has ' ' in keys"),
    "no sequence": ({"sequence_by": "[]"}, r"has sequence_by=\[\]. Give a list of column names"),
    "sequence is None": (
        {"sequence_by": "None"},
        "has sequence_by=None. Allowed are the name of a column, a list of names",
    ),
    "sequence is a truth value": ({"sequence_by": "True"}, "has sequence_by=True. Allowed are the name"),
    "sequence is broken": ({"sequence_by": "1.5"}, "has sequence_by=1.5. Allowed are the name of a column"),
    "sequence beyond a BIGINT": (
        {"sequence_by": "2 ** 63"},
        "has sequence_by=9223372036854775808. A literal sequence must fit",
    ),
    "source is a list": (
        {"source": "['cdc']"},
        r"has the source \['cdc'\]. Give the name of one source or view",
    ),
    "delete is no text": ({"apply_as_deletes": "True"}, "has apply_as_deletes=True. Give a condition in SQL"),
    "delete is empty": ({"apply_as_deletes": "''"}, "has apply_as_deletes=''. Give a condition in SQL"),
    "truncate is no text": ({"apply_as_truncates": "1"}, "has apply_as_truncates=1. Give a condition in SQL"),
    "key not stored": ({"column_list": "['n']"}, "leaves its key id out of column_list"),
    "key left out": ({"except_column_list": "['Id']"}, "has its key Id in except_column_list"),
    "empty list": ({"column_list": "[]"}, r"has column_list=\[\]. Give a list of column names"),
    "nulls neither true nor false": (
        {"ignore_null_updates": "'yes'"},
        "has ignore_null_updates='yes'. Allowed are True and False",
    ),
    "type 3": ({"stored_as_scd_type": "3"}, "has stored_as_scd_type=3. Allowed are 1 and 2"),
    "type True": ({"stored_as_scd_type": "True"}, "has stored_as_scd_type=True. Allowed are 1 and 2"),
    "type in words": ({"stored_as_scd_type": "'SCD2'"}, "has stored_as_scd_type='SCD2'. Allowed are 1 and 2"),
    "bad park_after": (
        {"park_after": "0"},
        "flow f has park_after 0. Allowed is a whole number from 1 to 100",
    ),
    "bad spark_conf": ({"spark_conf": "[1]"}, r"the options of the flow f are \[1\]. Give a dict"),
    "once is no truth value": ({"once": "'yes'"}, "flow f has once='yes'. Allowed are True and False"),
    "once with a trigger": (
        {"once": "True", "trigger": "'5 seconds'"},
        "flow f runs once and has the trigger '5 seconds'",
    ),
    "slash in the name": ({"name": "'a/b'"}, "the flow name 'a/b' cannot be used"),
    "no keys at all": (
        {"key": "['id']"},
        "create_auto_cdc_flow takes no key: correct the name, or leave it out. It takes name, target",
    ),
}


@pytest.mark.parametrize(("changes", "message"), BAD_CDC.values(), ids=BAD_CDC.keys())
def test_what_an_auto_cdc_flow_may_not_be_given_is_refused_with_its_place(
    changes: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DeclarationError, match=rf"^p\.py, line 5: .*{message}"):
        load(tmp_path, auto_cdc(**changes))


COLUMNS = ("keys", "sequence_by", "apply_as_deletes", "column_list")


@pytest.mark.parametrize("parameter", COLUMNS)
def test_a_column_of_sparks_is_refused_with_a_hint_since_declarations_are_read_without_spark(
    parameter: str, tmp_path: Path
) -> None:
    column = "type('Column', (), {'__module__': 'pyspark.sql.column'})()"
    given = column if parameter in ("sequence_by", "apply_as_deletes") else f"[{column}]"
    with pytest.raises(
        DeclarationError, match=r"a pyspark Column.* declaration is read without Spark, so col\(…\)"
    ):
        load(tmp_path, auto_cdc(**{parameter: given}))


def two(first: dict[str, str], second: dict[str, str]) -> str:
    body = auto_cdc(**first)
    return body + auto_cdc(**{"name": "'g'", **second}).removeprefix(CHANGES)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"sequence_by": "0", "once": "True"}),
        ({"sequence_by": "['a', 'b']"}, {"sequence_by": "7"}),
        ({}, {"column_list": "['id', 'n']"}),
    ],
    ids=["a snapshot at 0", "a literal beside two columns", "other columns"],
)
def test_flows_that_agree_may_write_one_table(
    first: dict[str, str], second: dict[str, str], tmp_path: Path
) -> None:
    assert [flow.target for flow in load(tmp_path, two(first, second)).flows] == ["t", "t"]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"keys": "['other']"}, r"keys=\['other'\], and the flow f \(p\.py, line 5\) with keys=\['id'\]"),
        ({"stored_as_scd_type": "2"}, "stored_as_scd_type=2, and the flow f .* with stored_as_scd_type=1"),
        (
            {"sequence_by": "['a', 'b']"},
            r"sequence_by=\['a', 'b'\], and the flow f .* with sequence_by=\['seq'\]",
        ),
    ],
    ids=["keys", "SCD type", "number of sequence columns"],
)
def test_flows_of_one_table_that_do_not_agree_are_refused(
    second: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DeclarationError, match=rf"^p\.py, line 6: the flow g writes t with {message}"):
        load(tmp_path, two({}, second))


def test_a_table_that_is_kept_by_key_takes_no_appended_rows(tmp_path: Path) -> None:
    append = "@dp.append_flow(target='t', sources=['cdc'])\ndef more(cdc): return cdc"
    with pytest.raises(
        DeclarationError,
        match=r"^p\.py, line 6: the flow more appends to t, .* AUTO CDC flow f \(p\.py, line 5\)",
    ):
        load(tmp_path, auto_cdc() + append)


def test_a_flow_may_run_once_but_not_in_a_driver_that_others_share(tmp_path: Path) -> None:
    once = GOOD.replace('trigger="2 seconds"', "once=True")
    assert load(tmp_path, once).flows[0].once
    with pytest.raises(DeclarationError, match=r"the flow f runs once, but its pipeline has a shared driver"):
        load(tmp_path, once + "dp.configure_pipeline(shared_driver=True)")


def test_an_auto_cdc_flow_goes_to_json_and_back(tmp_path: Path) -> None:
    plain = load(tmp_path, two({"column_list": "['id', 'n']"}, {"sequence_by": "0", "once": "True"}))
    assert pipeline_from_json(json.loads(json.dumps(pipeline_to_json(plain)))) == plain


@pytest.mark.parametrize(
    "change",
    [
        {"sequence_by": "'other'"},
        {"apply_as_deletes": "'true'"},
        {"stored_as_scd_type": "2"},
        {"once": "True"},
        {"column_list": "['id']"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_declaration_of_changes_is_another_fingerprint(
    change: dict[str, str], tmp_path: Path
) -> None:
    assert prints(tmp_path, auto_cdc()) == prints(tmp_path, "# a comment\n" + auto_cdc())
    assert prints(tmp_path, auto_cdc()) != prints(tmp_path, auto_cdc(**change))
