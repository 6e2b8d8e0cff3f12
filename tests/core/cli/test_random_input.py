"""What people type and declare, at random: command lines, values of forms, environments, pipeline files. Each
ends in words of ours; none takes others along.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from streamkeeper.cli.commands import app
from streamkeeper.errors import SettingsError, StreamkeeperError
from streamkeeper.manifest.manifest import Manifest, make_manifest, read_manifest
from streamkeeper.recover import engine
from streamkeeper.recover.plans.kind import KINDS, kind
from streamkeeper.settings import Settings, variable
from tests.worlds.small_world import World
from tests.worlds.states.nasty import NASTY, bounded_memory, run, text

FLOW = "events.clean_events"
SECONDS = 20.0
"""Seconds of the processor that a case may take."""
LONG = pytest.mark.long
APART = {"run", "logs", "init", "jars", "doctor", "setup", "check", "preflight", "recover"}
"""Commands that start processes, download, or follow without an end."""


@pytest.fixture
def lived(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    world.processed(3)
    world.ran()
    world.park()
    world.enter(monkeypatch)
    return world


@contextmanager
def judged(case: str, found: list[str], *allowed: type[Exception]) -> Iterator[None]:
    """Note a case that raises another error than ours, or takes too long."""
    began = time.process_time()
    try:
        yield
    except allowed:
        pass
    except Exception as error:  # noqa: BLE001 - what is looked for
        found.append(f"{case}: {error!r:.300}")
    if time.process_time() - began > SECONDS:
        found.append(f"{case}: {time.process_time() - began:.0f} s")


def commands() -> list[tuple[list[str], list[Any]]]:
    """Return the words and the parameters of every command that ends by itself."""

    def below(command: Any, words: list[str]) -> Iterator[tuple[list[str], list[Any]]]:
        if not isinstance(command, TyperGroup):
            yield words, list(command.params)
            return
        context = SimpleNamespace(info_name=next(iter(words[-1:]), ""))
        for name in command.list_commands(context):
            if name not in APART:
                yield from below(command.get_command(context, name), [*words, name])

    return list(below(typer.main.get_command(app), []))


def is_folder(text: str) -> bool:
    try:
        return Path(text).expanduser().is_dir()
    except (OSError, RuntimeError, ValueError):
        return False


def line(dice: random.Random, words: list[str], parameters: list[Any]) -> list[str]:
    """Return a command line: some of the command's options, with values that fit and such that do not."""
    made = list(words)
    for parameter in parameters:
        value = dice.choice([text(dice), text(dice), FLOW, "events", "1"])
        if "--scan" in parameter.opts and is_folder(value):
            value = "/etc"  # a whole disk, or this project with all its packages, would be read for minutes
        if parameter.param_type_name == "argument":
            made += [value] if parameter.required or dice.random() < 0.5 else []
        elif parameter.required or dice.random() < 0.3:
            follows = {"--follow", "--watch", "--wait", "--help", "--rehearse"} & set(parameter.opts)
            alone = parameter.is_flag
            made += [] if follows else [parameter.opts[-1]] if alone else [parameter.opts[-1], value]
    return [*made, *([text(dice)] if dice.random() < 0.05 else [])]


@pytest.mark.parametrize("cases", [120, pytest.param(1_500, marks=LONG)])
@bounded_memory()
def test_whatever_is_typed_a_command_ends_in_words(
    cases: int, lived: World, capsys: pytest.CaptureFixture[str]
) -> None:
    known, found = commands(), list[str]()
    assert len(known) > 15
    for seed in range(cases):
        dice = random.Random(seed)
        words = line(dice, *dice.choice(known))
        with judged(f"seed {seed}: {words!s:.300}", found):
            error = run(words)
            if error is not None and not isinstance(error, StreamkeeperError):
                raise error
            assert len(str(error or "")) < 70_000
        capsys.readouterr()
    assert found == [], "\n".join(found)


@pytest.mark.parametrize("cases", [200, pytest.param(6_000, marks=LONG)])
@bounded_memory()
def test_whatever_a_form_sends_is_planned_or_refused_in_words(cases: int, lived: World) -> None:
    manifest, found = read_manifest(lived.settings), list[str]()
    for seed in range(cases):
        dice = random.Random(seed)
        chosen = kind(dice.choice(list(KINDS)))
        values = {}
        for field in chosen.form(manifest):
            fitting = [field.default, *(field.enum or ())]
            nasty = dice.choice(NASTY) if dice.random() < 0.5 else text(dice)
            values[field.name] = nasty if dice.random() < 0.3 else dice.choice(fitting)
        with judged(f"seed {seed}: {chosen.name} {values!s:.300}", found, StreamkeeperError):
            request = chosen.parse(values, manifest, "ada")
            engine.plan(lived.settings, chosen, request, f"r{seed}")
    assert found == [], "\n".join(found)


@pytest.mark.parametrize("cases", [300, pytest.param(2_000, marks=LONG)])
@bounded_memory()
def test_whatever_the_environment_says_settings_are_read_or_refused_in_words(
    cases: int, world: World
) -> None:
    names, found = [variable(name) for name in Settings.__dataclass_fields__], list[str]()
    for seed in range(cases):
        dice = random.Random(seed)
        said = {name: text(dice) for name in dice.sample(names, dice.randint(1, 3))}
        with judged(f"seed {seed}: {said!s:.300}", found, SettingsError):
            settings = Settings.from_environment({**world.environment, **said})
            assert Settings.from_environment(settings.as_environment()) == settings
    assert found == [], "\n".join(found)


STATEMENTS = (
    "import os; os._exit({n})",
    "import sys; sys.exit({n})",
    "raise ValueError({v!r})",
    "class E(BaseException):\n    def __str__(self): raise E()\nraise E()",
    "import os; [os.close(n) for n in range(64) if n > 2]",
    "import os; os.remove(__file__)",
    "import os; os.chdir('/'); os.environ.clear()",
    "print({v!r} * 1000)",
    "x = [0] * 10**10",
    "def f(n): return f(n + 1)\nf(0)",
    "import signal, os; os.kill(os.getpid(), signal.SIGSEGV)",
    "dp.create_source({v!r}, format={v!r})",
    "dp.create_source('s{n}', format='json', path={v!r}, schema={w!r}, options={{'a': {w!r}}})",
    "dp.create_streaming_table({v!r}, comment={w!r})",
    "dp.create_streaming_table('t{n}', table_properties={{{v!r}: {w!r}}})",
    "dp.append_flow(name={v!r}, target={w!r}, sources=['s'])(lambda s: s)",
    "dp.append_flow(name='f', target='m', sources=['mine_raw'], spark_conf={{{v!r}: {w!r}}})(lambda s: s)",
    "dp.configure_pipeline(rehearse={v!r})",
    "dp.schedule('clean_up', cron={v!r})",
    "dp.create_auto_cdc_flow(name='c', target='mine', source='mine_raw', keys={v!r}, sequence_by={w!r})",
    "dp.notifier({v!r}, to={w!r})",
    "'\\ud800'.encode()",
    "(((((",
    "\0",
)
"""Statements of a pipeline file. Names and values are filled in."""
HEAD = """from streamkeeper import pipelines as dp
dp.create_source("mine_raw", format="json", path="{{data}}/mine", schema="id INT")
dp.create_streaming_table("mine_{n}")
"""


def made(settings: Settings) -> Manifest:
    """Return the manifest; where files changed themselves meanwhile, ask again as the error says."""
    for _ in range(2):
        try:
            return make_manifest(settings)
        except StreamkeeperError as error:
            # One call asks twice by itself, unless the machine is slow.
            if "changed while they were read" not in str(error):
                raise
    return make_manifest(settings)


@pytest.mark.parametrize("rounds", [1, pytest.param(12, marks=LONG)])
def test_whatever_a_pipeline_file_does_costs_its_own_flows_alone(rounds: int, world: World) -> None:
    for seed in range(rounds):
        dice = random.Random(seed)
        world.declare()
        pipelines = world.settings.pipelines
        written = []
        for number in range(8 if rounds == 1 else 20):
            chosen = [dice.choice(STATEMENTS) for _ in range(dice.randint(1, 3))]
            body = "\n".join(one.format(n=number, v=text(dice)[:200], w=text(dice)[:200]) for one in chosen)
            file = pipelines / f"nasty_{number}.py"
            file.write_text(HEAD.format(n=number) + body + "\n", "utf-8", "surrogateescape")
            written.append(file)
        began = time.monotonic()
        manifest = made(world.settings)
        assert FLOW in {flow.full_name for flow in manifest.flows()}, manifest.errors
        unknown = {name for name in manifest.errors if not name.startswith("nasty_")}
        assert unknown == set(), f"seed {seed}: {manifest.errors}"
        assert all(f"{name}.py" in error for name, error in manifest.errors.items()), manifest.errors
        assert time.monotonic() - began < 600
        for file in written:
            file.unlink(missing_ok=True)
