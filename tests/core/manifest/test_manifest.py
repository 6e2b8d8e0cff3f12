"""The manifest: made in a process of its own, found by the hash of the files, and nobody pays for somebody
else's broken file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from streamkeeper.errors import RequestError, SettingsError, StorageError, StreamkeeperError
from streamkeeper.manifest import import_all, manifest
from streamkeeper.manifest.manifest import declared, read_manifest, settings_of
from streamkeeper.storage import LocalStorage
from tests.worlds.small_world import EVENTS, World, write_manifest

LEAVES_A_MARK = (
    "import os, pathlib\npathlib.Path(__file__).with_name('mark.txt').open('a').write(f'{os.getpid()}\\n')\n"
    + EVENTS
)


def marks(world: World) -> list[int]:
    file = world.root / "pipelines" / "mark.txt"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def test_the_reader_never_imports_user_code_and_the_maker_does_once(world: World) -> None:
    world.declare(LEAVES_A_MARK)
    first, again = read_manifest(world.settings), read_manifest(world.settings)
    assert first == again
    assert [flow.full_name for flow in first.flows()] == ["events.clean_events"]
    assert len(marks(world)) == 1
    assert os.getpid() not in marks(world)


def test_a_changed_file_makes_it_anew_and_an_old_state_is_found_again(world: World) -> None:
    world.declare(LEAVES_A_MARK)
    first = read_manifest(world.settings)
    world.declare(LEAVES_A_MARK.replace('schema="event_id STRING"', 'schema="event_id LONG"'))
    second = read_manifest(world.settings)
    world.declare(LEAVES_A_MARK)
    assert read_manifest(world.settings) == first != second
    assert len(marks(world)) == 2


@pytest.mark.parametrize("change", ["a helper module", "where the data is", "a new file"])
def test_the_key_knows_everything_that_declarations_depend_on(change: str, world: World) -> None:
    before = manifest.files_key(world.settings)
    settings = world.settings
    if change == "a helper module":
        world.declare("X = 1", "lib/helper.py")
    elif change == "a new file":
        world.declare("", "other.py")
    else:
        settings = type(settings)(**{**vars(settings), "data": "/elsewhere"})
    assert manifest.files_key(settings) != before


def test_what_a_pipeline_says_of_owner_pool_and_connection_goes_before_the_settings(world: World) -> None:
    world.more |= {"STREAMKEEPER_POOL": "all", "STREAMKEEPER_DAG_TAGS": "prod"}
    own = 'dp.configure_pipeline(owner="team a", tags=["silver"], pool="a", connection="spark_a")\n'
    world.declare(f"{EVENTS}{own}")
    world.declare(EVENTS.replace("events", "others").replace("raw", "rough"), "others.py")
    settings, pipelines = world.settings, read_manifest(world.settings).pipelines
    chosen = [settings_of(settings, each) for each in ([pipelines[0]], [pipelines[1]], pipelines)]
    of_settings = ("", ("prod",), "all", "streamkeeper_spark")
    assert [(one.dag_owner, one.dag_tags, one.pool, one.connection) for one in chosen] == [
        ("team a", ("prod", "silver"), "a", "spark_a"),
        of_settings,
        of_settings,
    ]


def test_a_broken_file_keeps_its_last_declaration_and_the_others_go_on(world: World) -> None:
    world.declare(EVENTS.replace("events", "orders"), "orders.py")
    before = {flow.full_name: flow.fingerprint for flow in read_manifest(world.settings).flows()}
    for broken in ("1 / 0", "import nowhere_at_all"):  # twice: what was kept once is kept again
        world.declare("from streamkeeper import pipelines as dp\n" + broken)
        world.declare(EVENTS.replace("events", "orders").replace("STRING", "LONG"), "orders.py")
        found = read_manifest(world.settings)
        assert {flow.full_name for flow in found.flows()} == set(before)
        assert found.find("events.clean_events").fingerprint == before["events.clean_events"]
        assert found.find("clean_orders").fingerprint != before["orders.clean_orders"]
        assert list(found.errors) == ["events"]
        assert "events.py, line 2: the file raises" in found.errors["events"]


def test_a_file_that_never_could_be_read_has_no_flows_and_an_error(world: World) -> None:
    world.declare("from streamkeeper import pipelines\nraise ValueError('no')", "fresh.py")
    found = read_manifest(world.settings)
    assert [flow.full_name for flow in found.flows()] == ["events.clean_events"]
    assert "fresh.py, line 2: the file raises ValueError: no" in found.errors["fresh"]


@pytest.mark.parametrize("name", ["second.py", "copy_of_events.py", "Events2.py"])
def test_who_had_a_table_keeps_it_whatever_the_copy_is_named(name: str, world: World) -> None:
    before = read_manifest(world.settings)
    world.declare(EVENTS, name)
    for found in (read_manifest(world.settings), write_manifest(world.settings)):
        assert [flow.full_name for flow in found.flows()] == ["events.clean_events"]
        assert found.fingerprints == before.fingerprints
        assert [flow.full_name for flow in found.writers("events", "events")] == ["events.clean_events"]
        said = found.errors[name.removesuffix(".py")]
        assert (
            f"{name}, line 5: the table events belongs to the pipeline events already (events.py, line 5)"
            in said
        )
        assert f"remove events.py and run `streamkeeper rename events {name.removesuffix('.py')}`" in said


@pytest.mark.parametrize("inner", ["events.daily", "events"], ids=["within", "around"])
def test_a_table_does_not_lie_in_the_folder_of_another_pipelines(inner: str, world: World) -> None:
    own, theirs = ("events.daily", "events") if inner == "events" else ("events", inner)
    world.declare(EVENTS.replace('"events")', f'"{own}")').replace('="events"', f'="{own}"'))
    before = read_manifest(world.settings)
    other = EVENTS.replace('"events")', f'"{theirs}")').replace('="events"', f'="{theirs}"')
    world.declare(other, "a.py")  # comes first by its name
    found = read_manifest(world.settings)
    assert found.fingerprints == before.fingerprints
    assert f"a.py, line 5: the table {theirs} and the table {own} (events.py, line 5)" in found.errors["a"]


def test_a_table_does_not_move_into_another_file(world: World) -> None:
    world.processed(2)
    orders = EVENTS.replace("events", "orders")
    world.declare(orders, "orders.py")
    before = write_manifest(world.settings)
    (world.settings.pipelines / "events.py").unlink()
    world.declare(orders + EVENTS, "orders.py")
    found = write_manifest(world.settings)
    assert found.fingerprints == before.fingerprints
    assert (
        "events.py is gone, and orders.py declares its table events. Put events.py back"
        in found.errors["events"]
    )
    assert "the table events belongs to the pipeline events already" in found.errors["orders"]


def test_a_broken_owner_keeps_its_table(world: World) -> None:
    read_manifest(world.settings)
    world.declare("1 / 0  # streamkeeper")
    world.declare(EVENTS, "copy.py")
    found = read_manifest(world.settings)
    assert [flow.full_name for flow in found.flows()] == ["events.clean_events"]
    assert found.errors.keys() == {"copy", "events"}


def forget_manifests(world: World) -> None:
    shutil.rmtree(world.root / "state" / "manifests")


def test_a_table_is_known_by_its_log_where_no_manifest_is_left(world: World) -> None:
    world.processed(2)
    forget_manifests(world)
    world.declare(EVENTS, "copy.py")
    found = read_manifest(world.settings)
    assert [flow.full_name for flow in found.flows()] == ["events.clean_events"]
    assert "the table events belongs to the pipeline events already" in found.errors["copy"]


def test_a_table_of_a_pipeline_that_is_gone_is_not_written_by_the_next(world: World) -> None:
    world.processed(2)
    (world.settings.pipelines / "events.py").unlink()
    assert list(read_manifest(world.settings).flows()) == []
    other = EVENTS.replace("clean_events", "more").replace("event_id STRING", "event_id LONG")
    world.declare(other, "other.py")
    assert (
        "the table events belongs to the pipeline events already"
        in read_manifest(world.settings).errors["other"]
    )
    shutil.rmtree(world.root / "warehouse" / "events")
    found = write_manifest(world.settings)
    assert ([flow.full_name for flow in found.flows()], found.errors) == (["other.more"], {})


def test_a_pipeline_whose_new_table_is_anothers_keeps_its_last_declaration(world: World) -> None:
    orders = EVENTS.replace("events", "orders")
    world.declare(orders, "alpha.py")
    before = write_manifest(world.settings)
    world.declare(orders + EVENTS.replace("from streamkeeper import pipelines as dp", ""), "alpha.py")
    found = write_manifest(world.settings)
    assert found.fingerprints == before.fingerprints
    assert "the table events belongs to the pipeline events already" in found.errors["alpha"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("_private.py", "from streamkeeper import nothing_at_all"),
        ("helper.py", "LIMIT = 10"),
        ("lib/deep.py", EVENTS),
    ],
    ids=["underscore", "no pipeline", "in a folder"],
)
def test_helper_modules_are_no_pipelines(name: str, text: str, world: World) -> None:
    world.declare(text, name)
    found = read_manifest(world.settings)
    assert ([flow.full_name for flow in found.flows()], found.errors) == (["events.clean_events"], {})


def test_a_sink_of_files_lies_below_the_allowed_roots(world: World) -> None:
    text = f'''from streamkeeper import pipelines as dp
dp.create_source("raw", format="json", path="{world.root}/data", schema="id INT")
dp.create_sink("out", "json", {{"path": "/elsewhere/out"}})
@dp.append_flow(target="out", sources=["raw"])
def f(raw): return raw
'''
    world.declare(text, "sinks.py")
    assert manifest.make_manifest(world.settings).pipeline("sinks") is not None
    world.declare(text + "# changed", "sinks.py")
    allowed = replace(world.settings, allowed_roots=("/srv",))
    assert "sink out: /elsewhere/out lies in none of" in manifest.make_manifest(allowed).errors["sinks"]


def test_a_folder_of_the_users_shadows_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.root / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(world.root)
    assert [flow.name for flow in read_manifest(world.settings).flows()] == ["clean_events"]


def test_files_that_change_while_they_are_read_are_never_kept_under_the_old_hash(world: World) -> None:
    appending = "import pathlib\nwith pathlib.Path(__file__).open('a') as me: me.write('# more\\n')\n"
    world.declare(appending + EVENTS)
    with pytest.raises(
        StreamkeeperError, match=r"changed while they were read .* Run `streamkeeper check` again"
    ):
        write_manifest(world.settings)
    assert not (world.root / "state" / "manifests").exists()


def test_a_pipelines_folder_that_is_not_there_is_named(world: World) -> None:
    settings = type(world.settings)(**{**vars(world.settings), "pipelines": Path("/no/such")})
    with pytest.raises(SettingsError, match=r"/no/such is not there. Make it, or set STREAMKEEPER_PIPELINES"):
        read_manifest(settings)


def test_what_files_declare_is_told_where_the_state_folder_cannot_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise StorageError("no answer")

    monkeypatch.setattr(LocalStorage, "names", fails)
    assert [flow.full_name for flow in declared(world.settings).flows()] == ["events.clean_events"]


def test_a_pipeline_file_that_takes_too_long_is_told_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_all, "BUILD_SECONDS", 1.0)
    world.declare("import threading\nthreading.Event().wait(30)\n" + EVENTS)
    with pytest.raises(StreamkeeperError, match=r"took more than 1.0 s. They must only declare"):
        read_manifest(world.settings)


ENDS = {
    "exits": ("import os\nos._exit(0)\n", r"ended the process that imports it \(exit code 0\)"),
    "crashes": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
        r"ended the process that imports it \(SIGSEGV\)",
    ),
    "raises a class of its own": (
        "class Own(BaseException): pass\nraise Own('no')\n",
        "the file raises Own: no",
    ),
    "raises GeneratorExit": ("raise GeneratorExit\n", "the file raises GeneratorExit"),
    "raises KeyboardInterrupt": ("raise KeyboardInterrupt\n", "the file raises KeyboardInterrupt"),
    "raises what has no words": (
        "class Own(Exception):\n    def __str__(self): raise ValueError('no words')\nraise Own\n",
        "the file raises Own",
    ),
    "raises what is no text": ("raise ValueError('\\udc80')\n", r"the file raises ValueError: \\udc80"),
    "declares what is no text": (
        EVENTS.replace("options={}", "options={'maxFileAge': '\\udc80'}"),
        "cannot be written as UTF-8",
    ),
    "hangs, and passes over what interrupts it": (
        "import threading\ntry:\n    threading.Event().wait(60)\nexcept Exception:\n    pass\n" + EVENTS,
        "importing the file took more than 3 s. It must only declare",
    ),
    "hangs and hears no signal": (
        (
            "import signal, threading\nsignal.signal(signal.SIGALRM,"
            " signal.SIG_IGN)\nthreading.Event().wait(60)\n"
        ),
        "took more than 3 s",
    ),
    "eats memory": (
        "eaten = []\nwhile True:\n    eaten.append(bytearray(2**26))\n",
        "the file raises MemoryError",
    ),
    "closes all descriptors": (
        "import os\nos.closerange(0, 1000)\n",
        "ended the process that imports it",
    ),
    "prints 200 megabytes": (
        "import os\npiece = b'x' * 2**20\nfor _ in range(200): os.write(2, piece)\nraise OSError('done')\n",
        "the file raises OSError: done",
    ),
    "answers at length in its own name": (
        "import os\npiece = b'x' * 2**20\nfor _ in range(100): os.write(3, piece)\n",
        "ended the process that imports it",
    ),
    "answers nonsense in its own name": (
        "import os\nos.write(3, b'{}\\n')\n",
        "it wrote into that process' answers",
    ),
    "leaves no import to whoever comes next": (
        "import builtins\nbuiltins.__import__ = None\nraise OSError('no')\n",
        "the file raises OSError: no",
    ),
    "closes what others print to": (
        "import os, sys\nsys.stdout.close()\nsys.stderr.close()\nos.closerange(1, 3)\nraise OSError('no')\n",
        "the file raises OSError: no",
    ),
    "imports a module that is no Python": (
        "def late():\n    import spoilt\n" + EVENTS,
        "the file raises SyntaxError",
    ),
}


@pytest.mark.parametrize(("text", "said"), ENDS.values(), ids=ENDS)
def test_a_file_that_ends_its_process_costs_nobody_elses_flows(
    text: str,
    said: str,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(import_all, "FILE_SECONDS", 3.0)
    monkeypatch.setattr(import_all, "MEMORY", 2**29, raising=False)
    for name in ("orders", "zoo"):
        world.declare("print('a line of output')\n" + EVENTS.replace("events", name), f"{name}.py")
    world.declare("def", "lib/__init__.py")
    world.declare("def", "spoilt.py")
    before = {flow.full_name: flow.fingerprint for flow in write_manifest(world.settings).flows()}
    world.declare("# streamkeeper\n" + text)
    world.declare(EVENTS.replace("events", "others"), "others.py")
    found = read_manifest(world.settings)
    assert len(capsys.readouterr().err) < 3 * import_all.OUTPUT
    assert found.errors.keys() == {"events"}
    assert re.search(said, found.errors["events"]), found.errors["events"]
    assert {flow.full_name for flow in found.flows()} == before.keys() | {"others.clean_others"}
    assert found.find("events.clean_events").fingerprint == before["events.clean_events"]


@pytest.mark.parametrize(
    "act",
    ["os.remove(__file__)", "os.rename(__file__, os.path.join(os.path.dirname(__file__), 'renamed.py'))"],
    ids=["removes", "renames"],
)
def test_a_file_that_takes_itself_away_costs_nobody_elses_flows(act: str, world: World) -> None:
    write_manifest(world.settings)
    world.declare("import os\n" + act + "\n" + EVENTS.replace("events", "orders"), "orders.py")
    world.declare(EVENTS.replace("events", "others"), "others.py")
    found = read_manifest(world.settings)
    assert manifest.FOLDER not in found.errors
    assert {"events.clean_events", "others.clean_others"} <= {flow.full_name for flow in found.flows()}


def put_dangling_link(folder: Path) -> None:
    (folder / ".#events.py").symlink_to("me@host.1:1")
    (folder / "gone.py").symlink_to("nowhere.py")


def put_hidden(folder: Path) -> None:
    (folder / ".late").mkdir()
    for name in (".events.py", ".late/more.py"):
        (folder / name).write_text("from streamkeeper import nothing")


ODD = {
    "a link that leads nowhere": put_dangling_link,
    "a link to itself": lambda folder: (folder / "loop.py").symlink_to("loop.py"),
    "a folder": lambda folder: (folder / "x.py").mkdir(),
    "a FIFO": lambda folder: os.mkfifo(folder / "x.py"),
    "hidden names": put_hidden,
}


@pytest.mark.parametrize("put", ODD.values(), ids=ODD)
def test_what_is_no_pipeline_file_is_left_out(put: Callable[[Path], None], world: World) -> None:
    before = read_manifest(world.settings)
    put(world.settings.pipelines)
    assert read_manifest(world.settings) == before
    assert write_manifest(world.settings) == before


def test_a_link_to_a_file_is_that_file(world: World) -> None:
    """Mounted configurations are links into a hidden folder."""
    before = read_manifest(world.settings)
    file = world.settings.pipelines / "events.py"
    (file.parent / "..2026").mkdir()
    file.rename(file.parent / "..2026" / "events.py")
    file.symlink_to("..2026/events.py")
    assert read_manifest(world.settings) == before


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"format": 4'], ids=["empty", "without anything", "no object", "cut off"]
)
@pytest.mark.parametrize("which", ["manifest", "pointer"])
def test_a_damaged_manifest_is_made_anew(which: str, content: str, world: World) -> None:
    found = read_manifest(world.settings)
    file = world.root / "state" / "manifests" / ("latest.json" if which == "pointer" else f"{found.key}.json")
    file.write_text(content)
    assert read_manifest(world.settings) == found
    assert write_manifest(world.settings) == found


def test_a_folder_that_cannot_be_looked_at_keeps_the_last_declarations(world: World) -> None:
    before = read_manifest(world.settings)
    world.settings.pipelines.rename(world.root / "unmounted")
    found = read_manifest(world.settings)
    assert (found.pipelines, found.fingerprints) == (before.pipelines, before.fingerprints)
    assert "keep their last declaration. The pipelines folder" in found.errors[manifest.FOLDER]
    (world.root / "unmounted").rename(world.settings.pipelines)
    assert read_manifest(world.settings) == before


@pytest.mark.parametrize("text", [EVENTS, "X = 1\n"], ids=["a pipeline", "a helper"])
@pytest.mark.parametrize("folder", ["", "lib/"], ids=["beside", "below"])
def test_a_file_whose_name_is_no_text_costs_nobody_elses_flows(folder: str, text: str, world: World) -> None:
    world.declare(text, folder + os.fsdecode(b"caf\xe9.py"))
    found = manifest.make_manifest(world.settings)
    assert [flow.full_name for flow in found.flows()] == ["events.clean_events"]
    assert read_manifest(world.settings) == found
    if text == EVENTS and not folder:
        (said,) = found.errors.values()
        assert said.startswith("caf\\udce9.py, line 1:") and said.isascii()
    else:
        assert not found.errors


def test_an_error_that_nobody_foresaw_keeps_the_last_declarations(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_manifest(world.settings)
    world.declare(EVENTS.replace("events", "orders"), "orders.py")

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a fault of ours, at caf\udce9")

    monkeypatch.setattr(manifest, "make_manifest", fail)
    found = read_manifest(world.settings)
    assert (found.pipelines, found.fingerprints) == (before.pipelines, before.fingerprints)
    assert "ZeroDivisionError('a fault of ours" in found.errors[manifest.FOLDER]


@pytest.mark.parametrize("text", ["", "# saved half-way\n"], ids=["emptied", "without a declaration"])
def test_a_pipeline_file_that_declares_nothing_any_more_keeps_its_flows_and_says_so(
    text: str, world: World
) -> None:
    before = [flow.fingerprint for flow in read_manifest(world.settings).flows()]
    world.declare(text)
    for _ in range(2):
        found = write_manifest(world.settings)
        assert [flow.fingerprint for flow in found.flows()] == before
        assert "no longer imports streamkeeper" in found.errors["events"]
    (world.settings.pipelines / "events.py").unlink()
    assert list(read_manifest(world.settings).flows()) == []


def test_a_manifest_of_a_later_release_is_not_read(world: World) -> None:
    """After the way back from an upgrade nothing is kept that a later release declared."""
    write_manifest(world.settings)
    [file] = (
        file for file in (world.root / "state" / "manifests").glob("*.json") if file.name != "latest.json"
    )
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 99}))
    world.declare("1 / 0  # streamkeeper")
    assert list(write_manifest(world.settings).flows()) == []


def test_two_processes_that_make_it_at_once_both_find_it(world: World) -> None:
    command = [
        sys.executable,
        "-c",
        "from streamkeeper.manifest.manifest import *; print(read_manifest(Settings.from_environment()).key)",
    ]
    running = [
        subprocess.Popen(
            command,
            env={**os.environ, **world.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    results = [(*process.communicate(), process.returncode) for process in running]
    assert [(error, code) for _, error, code in results] == [("", 0)] * 2
    assert results[0][0] == results[1][0] != ""


def test_a_flow_is_found_by_its_full_name_or_its_own_where_that_says_enough(world: World) -> None:
    world.declare(EVENTS.replace('"events"', '"others"'), "others.py")
    found = read_manifest(world.settings)
    assert found.find("others.clean_events").dag_id == "flow__others__clean_events"
    with pytest.raises(
        RequestError,
        match=r"'clean_events' is the name of 2 flows. Name one of: events.clean_events, others.clean_events",
    ):
        found.find("clean_events")


def test_an_unknown_flow_is_told_what_is_declared_and_what_is_broken(world: World) -> None:
    world.declare("from streamkeeper import pipelines\n1 / 0", "late.py")
    with pytest.raises(
        RequestError, match=r"(?s)no flow 'late.f'. Declared are: events.clean_events.*late.py, line 2"
    ):
        read_manifest(world.settings).find("late.f")
