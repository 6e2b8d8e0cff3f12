"""State files damaged at random: whatever a command finds in one, it ends in words that name the file."""

from __future__ import annotations

import json
import random
import re
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from streamkeeper.errors import StorageError, StreamkeeperError
from streamkeeper.flows import holds, leases
from streamkeeper.sources.base.format import Lag
from streamkeeper.storage import LocalStorage, read_json, to_json
from streamkeeper.watch import batch_numbers, behind, progress
from streamkeeper.watch.batch_numbers import Batch
from streamkeeper.watch.behind import Measured
from tests.worlds.recover.recoveries import approve, plan_reset
from tests.worlds.small_world import World
from tests.worlds.states.nasty import NASTY, bounded_memory, run

FLOW = "events.clean_events"
COMMANDS = (
    ["flows"],
    ["flow", FLOW],
    ["inspect", FLOW],
    ["events", FLOW],
    ["metrics"],
    ["history", FLOW],
    ["backups"],
    ["plan", "reset_checkpoint", "--flow", FLOW, "--start", "after-last"],
    ["plan", "rewind", "--flow", FLOW, "--batch", "1"],
    ["abandon", "r1"],
    ["hold", FLOW],
    ["release", FLOW],
    ["plan", "clean_up"],
    ["plan", "restore_table", "--table", "events"],
)
TORN = (b"", b"{", b"\0" * 40, b"\xff\xfe{}", b"[" * 100_000, b"{}", b"[]", b"5", b'{"a":' * 3000)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return each container in a JSON value with each of its keys."""
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    inner = [place for _, item in items if isinstance(item, (dict, list)) for place in places(item)]
    return [(value, key) for key, _ in items] + inner


def damage(file: Path, dice: random.Random) -> str:
    """Damage a state file: a value of another kind, a field that lacks, or bytes that are no JSON."""
    content = file.read_bytes()
    if dice.random() < 0.2 or not content.startswith(b"{"):
        torn = dice.choice([*TORN, content[: dice.randrange(len(content) + 1)]])
        file.write_bytes(torn)
        return f"{torn[:20]!r}"
    value = json.loads(content)
    holder, key = dice.choice(places(value))
    if dice.random() < 0.2:
        del holder[key]
    else:
        holder[key] = dice.choice(NASTY)
    file.write_text(json.dumps(value))
    return f"{key!r} → {str(holder.get(key, 'gone') if isinstance(holder, dict) else holder)[:60]}"


@pytest.fixture
def lived(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world with a file of each kind."""
    world.processed(3)
    world.ran()
    world.enter(monkeypatch)
    home = world.home
    lease = leases.acquire(home, 1, 0.1)
    batch = Batch(2, 1_790_000_000.0, 1.0, 4, 4, 0, 0, 0, None, {}, {})
    beat = leases.Heartbeat(lease.epoch, 3, "running", 1, lease.at, 2, 3)
    numbers = batch_numbers.Numbers(batch).as_details()
    home.storage.overwrite(home.heartbeat(lease.epoch), to_json(asdict(replace(beat, details=numbers))))
    batch_numbers.keep(home, [batch])
    behind.keep(home, Measured({"events_raw": Lag(files=1)}, 1), time.time())
    progress.note_look(home.storage, time.time())
    approve(world, plan_reset(world))
    world.park()
    holds.put(home, holds.person("ada"), "a look", "ada", seconds=3600)
    return world


@pytest.mark.parametrize("cases", [150, pytest.param(1_000, marks=pytest.mark.long)])
@bounded_memory()
def test_whatever_a_state_file_holds_is_told_in_words(
    cases: int, lived: World, capsys: pytest.CaptureFixture[str]
) -> None:
    state = Path(lived.settings.state)
    shutil.copytree(state, lived.root / "whole")
    files = sorted(str(file.relative_to(state)) for file in state.rglob("*.json"))
    whole = {}
    for command in COMMANDS:
        whole[" ".join(command)] = run(command)
        shutil.rmtree(state)
        shutil.copytree(lived.root / "whole", state)
    capsys.readouterr()
    found = []
    for seed in range(cases):
        dice = random.Random(seed)
        name, command = dice.choice(files), dice.choice(COMMANDS)
        done = damage(state / name, dice)
        began = time.process_time()
        error, said = run(command), capsys.readouterr().out
        surprise = [
            line for line in said.splitlines() if re.search(r"(Type|Key|Attribute|Value)Error: ", line)
        ]
        if error is not None and not isinstance(error, StreamkeeperError):
            surprise.append(repr(error))
        elif error and Path(name).name not in str(error) and whole[" ".join(command)] is None:
            surprise.append(f"it does not name the file: {error}")
        if surprise or time.process_time() - began > 20:
            found.append(f"seed {seed}: {' '.join(command)} with {name}, {done}: {surprise}")
        shutil.rmtree(state)
        shutil.copytree(lived.root / "whole", state)
    assert found == [], "\n".join(found)


OF_TABLES = (
    ["tables"],
    ["plan", "full_refresh", "--table", "events"],
    ["plan", "rebuild_without_downtime", "--table", "events"],
    ["plan", "backup_table", "--table", "events"],
    ["plan", "tidy_tables", "--pipeline", "events"],
    ["plan", "clean_up", "--pipeline", "events"],
)


@pytest.mark.parametrize("cases", [80, pytest.param(1_000, marks=pytest.mark.long)])
@bounded_memory()
def test_whatever_a_tables_log_holds_is_told_in_words(
    cases: int, lived: World, capsys: pytest.CaptureFixture[str]
) -> None:
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "cardinality": 1}
    lived.commit(
        {"add": {"path": "a", "size": 1, "stats": '{"numRecords":3}', "deletionVector": vector}},
        {"metaData": {"id": "t", "configuration": {}, "schemaString": "{}"}},
        operation="RESTORE",
        operationParameters={"version": "1"},
        userMetadata="{}",
    )
    lived.summarize('{"fields":[{"name":"id","type":"string","metadata":{}}]}')
    log = lived.version(0).parent
    shutil.copytree(lived.root, lived.root.with_name("whole"))
    found = []
    for seed in range(cases):
        dice = random.Random(seed)
        file, command = dice.choice(sorted(log.iterdir())), dice.choice([*COMMANDS, *OF_TABLES])
        lines = file.read_bytes().splitlines()
        number = dice.randrange(len(lines))
        file.write_bytes(lines[number])
        done = damage(file, dice)
        lines[number] = file.read_bytes()
        file.write_bytes(b"\n".join(lines) + b"\n")
        began = time.process_time()
        error, said = run(command), capsys.readouterr().out
        surprise = re.findall(r"(?:Type|Key|Attribute|Value|Index)Error: .*", said)
        if error is not None and not isinstance(error, StreamkeeperError):
            surprise.append(repr(error))
        if surprise or time.process_time() - began > 20:
            found.append(f"seed {seed}: {' '.join(command)} with {file.name}, {done}: {surprise}")
        for folder in ("state", "warehouse"):
            shutil.rmtree(lived.root / folder)
            shutil.copytree(lived.root.with_name("whole") / folder, lived.root / folder)
    assert found == [], "\n".join(found)


def test_a_state_file_that_is_cut_at_any_byte_is_named_and_never_taken_for_another(lived: World) -> None:
    storage = LocalStorage(lived.settings.state)
    names = [name for name in storage.sizes() if name.endswith(".json")]
    assert len(names) > 15
    for name in names:
        content, whole, file = storage.read(name), read_json(storage, name), Path(storage.path(name))
        assert content is not None and whole is not None
        for length in range(len(content.rstrip())):
            file.write_bytes(content[:length])
            with pytest.raises(StorageError, match=re.escape(str(file))):
                read_json(storage, name)
