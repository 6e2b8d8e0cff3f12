"""Recoveries by the clock: what a pipeline file may declare, what it may not, and what its DAG triggers."""

from __future__ import annotations

from typing import Any

import pytest

from streamkeeper.declare.model import Location
from streamkeeper.errors import DeclarationError
from streamkeeper.manifest.manifest import Manifest, read_manifest
from streamkeeper.recover.plans import schedules
from streamkeeper.recover.requests.backfill import BackfillRequest
from streamkeeper.recover.requests.reset_checkpoint import ResetRequest
from tests.worlds.pipelines import SEVERAL
from tests.worlds.small_world import EVENTS, World

HERE = Location("events.py", 9)
DAILY = 'dp.schedule("reset_checkpoint", flow="clean_events", {}, cron="@daily")\n'
NIGHTLY = DAILY.format('start="earliest", accept=["duplicates"]').replace("@daily", "0 3 * * *")
BACKFILL = (
    'dp.schedule("backfill", flow="clean_events", read="table", table="{table}", accept=["duplicates"],'
    ' cron="@weekly")\n'
)


def of(world: World) -> tuple[Manifest, dict[str, Any]]:
    """Give the manifest, and what its one schedule triggers."""
    manifest = read_manifest(world.settings)
    [pipeline] = manifest.pipelines
    return manifest, schedules.conf_of(pipeline, pipeline.schedules[0])


def test_a_schedule_comes_through_the_manifest_and_triggers_with_nobody_asked(world: World) -> None:
    world.declare(EVENTS + NIGHTLY)
    manifest, conf = of(world)
    [pipeline] = manifest.pipelines
    [schedule] = pipeline.schedules
    assert schedule.name == "reset_checkpoint__clean_events"
    assert (schedule.recovery, schedule.cron) == ("reset_checkpoint", "0 3 * * *")
    assert str(schedule.location) == "events.py, line 10"
    assert schedules.dag_id(pipeline, schedule) == "schedule__events__reset_checkpoint__clean_events"
    assert conf == {
        "reason": "scheduled: 0 3 * * *",
        "flow": "events.clean_events",
        "start": "earliest",
        "accept": ["duplicates"],
        "approval": False,
    }
    assert ResetRequest.parse(conf, manifest, "ada").accept == ("duplicates",)


def test_several_flows_get_their_full_names(world: World) -> None:
    flows = 'flows=["aside_events", "clean_events"]'
    world.declare(SEVERAL + DAILY.format('name="all"').replace('flow="clean_events"', flows))
    manifest, conf = of(world)
    assert conf["flows"] == ["events.aside_events", "events.clean_events"]
    assert ResetRequest.parse(conf, manifest, "ada").flows == ("events.aside_events", "events.clean_events")
    assert of(world)[1] == conf, "what was declared is not changed by looking"


def test_the_table_of_a_scheduled_backfill_is_any_of_the_warehouse_and_not_its_own(world: World) -> None:
    world.declare(EVENTS + BACKFILL.format(table="archive"))
    manifest, conf = of(world)
    assert (conf["flow"], conf["table"]) == ("events.clean_events", "archive")
    assert BackfillRequest.parse(conf, manifest, "ada").table == "archive"


def test_the_pipeline_of_a_scheduled_clean_up_is_the_files_own(world: World) -> None:
    world.declare(EVENTS + 'dp.schedule("clean_up", tombstone_days=90, cron="@daily")\n')
    manifest, conf = of(world)
    assert (manifest.errors, conf["pipeline"]) == ({}, "events")


def test_a_schedule_changes_no_flow(world: World) -> None:
    before = world.flow.fingerprint
    world.declare(EVENTS + NIGHTLY)
    assert world.flow.fingerprint == before


BAD: dict[str, tuple[str, str]] = {
    "unknown recovery": (
        'dp.schedule("repair", cron="@daily")',
        "there is no recovery 'repair' to schedule. There are: .*reset_checkpoint",
    ),
    "no flow": (
        'dp.schedule("reset_checkpoint", cron="@daily")',
        "none of flows, pipeline and all. Give exactly one",
    ),
    "unknown flow": (
        'dp.schedule("reset_checkpoint", flow="nobody", cron="@daily")',
        "There is no flow 'events.nobody'",
    ),
    "unknown value": (DAILY.format("colour=1"), "Unknown: 'colour'"),
    "bad value": (DAILY.format('state="kept"'), "state is 'kept'; allowed are"),
    "approval": (DAILY.format("approval=True"), "sets approval. A schedule cannot ask for approval"),
    "no JSON": (DAILY.format("offsets={1, 2}"), "a value that is not JSON"),
    "a template": (
        DAILY.format('reason="{{ conn.airflow.password }}"'),
        "value '{{ conn.airflow.password }}'. Airflow would render it as a template.* Give the value itself",
    ),
    "a template in a list": (DAILY.format('accept=["{% a %}"]'), "has the value '{% a %}'"),
    "a template in a name": (DAILY.format('offsets={"raw": {"{# x #}": 1}}'), "has the value '{# x #}'"),
    "bad name": (DAILY.format('name="a b"'), "name 'a b' cannot be used"),
    "twice": (
        NIGHTLY + NIGHTLY,
        "reset_checkpoint__clean_events is declared at events.py, line 10 already. Give one of them a name=",
    ),
    "its own table": (BACKFILL.format(table="events"), "table is events, which events.clean_events writes"),
    "bad cron": (NIGHTLY.replace("0 3 * * *", "daily"), "has cron 'daily'. Give five fields"),
}


@pytest.mark.parametrize(("line", "message"), BAD.values(), ids=BAD.keys())
def test_a_schedule_that_cannot_be_is_said_with_its_line_and_the_flows_stay(
    line: str, message: str, world: World
) -> None:
    read_manifest(world.settings)
    world.declare(EVENTS + line)
    found = read_manifest(world.settings)
    assert [flow.full_name for flow in found.flows()] == ["events.clean_events"]
    with pytest.raises(DeclarationError, match=rf"(?s)^events.py, line 1[01]: .*{message}"):
        raise DeclarationError(found.errors["events"])


GOOD = [
    "0 3 * * *",
    "*/5 * * * *",
    "0 0 1 jan MON-fri",
    "1,2,5-9/2 0-23 1-31 1-12 0-7",
    "30 2 29 2 *",
    "0 0 30 2 mon",
    "5/10 * * * sun",
    "05 00 * * 00",
    "@daily",
    " @Weekly ",
]


@pytest.mark.parametrize("cron", GOOD)
def test_a_cron_expression_that_fits_is_taken(cron: str) -> None:
    assert schedules.check_cron(cron, HERE) == cron.strip().lower()


MISFITS: dict[Any, str] = {
    "": "Give five fields",
    "* * * *": "Give five fields",
    "* * * * * *": "Give five fields",
    "@once": "one of @hourly, @daily",
    7: "Give five fields",
    None: "Give five fields",
    "60 * * * *": "out of range",
    "* * 0 * *": "out of range",
    "* * * * 8": "out of range",
    "* * * mon *": "is not acceptable",
    "*/0 * * * *": "step '0'",
    "*/ * * * *": "is not acceptable",
    "1,,2 * * * *": "is not acceptable",
    "r * * * *": "Give five fields",
    "* * L * *": "Give five fields",
    "* * * * mon#1": "Give five fields",
    "0 0 30 2 *": "can never occur",
    "0 0 31 4,6 *": "can never occur",
    "0 0 31 2 *,1": "can never occur",
}


@pytest.mark.parametrize(("cron", "message"), MISFITS.items(), ids=map(repr, MISFITS))
def test_a_cron_expression_that_does_not_fit_is_refused_with_the_reason(cron: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=rf"events.py, line 9: the schedule has cron .*{message}"):
        schedules.check_cron(cron, HERE)
