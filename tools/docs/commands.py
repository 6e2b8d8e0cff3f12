"""The command line, by the commands that it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import typer
from typer.core import TyperGroup

from streamkeeper.cli.commands import app
from streamkeeper.manifest.manifest import Manifest
from streamkeeper.recover.plans.kind import kind
from tools.docs.made import from_docstring, table


def commands() -> str:
    """Return a section for each command, with its options and its example."""
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    head = ["Options before the command:", "", table(("option", "what it does"), _rows(command.params))]
    return "\n".join([*head, *(line for one in command.commands.values() for line in _section(one))])


def _section(command: Any) -> Iterator[str]:
    arguments = "".join(f" {_argument(one)}" for one in command.params if one.param_type_name == "argument")
    of_kinds = " KIND [OPTIONS]" if isinstance(command, TyperGroup) else ""
    yield from (
        f"## {command.name}",
        "",
        "```text",
        f"streamkeeper {command.name}{arguments}{of_kinds}",
        "```",
        "",
    )
    yield from (from_docstring(command.help or ""), "")
    if of_kinds:
        yield from ("[The kinds, and the options of each](recoveries.md). Every kind also has these:", "")
    if rows := list(_rows(_parameters(command))):
        yield table(("argument or option", "what it does"), rows)
    if command.epilog:
        yield from (f"Example: `{command.epilog.removeprefix('Example: ')}`", "")


def _parameters(command: Any) -> list[Any]:
    """Return the parameters of a command; of a group of kinds those that are in no form."""
    if not isinstance(command, TyperGroup):
        return list(command.params)
    reset = kind("reset_checkpoint")
    fields = {field.name for field in reset.form(Manifest("", (), {}, {}))}
    of_reset: Any = command.get_command(SimpleNamespace(info_name=command.name), reset.name)  # type: ignore[arg-type]
    return [one for one in of_reset.params if one.name not in fields]


def _rows(parameters: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield a row for each parameter that is explained."""
    for one in parameters:
        if one.help and one.name != "help":
            argument = one.param_type_name == "argument"
            metavar = f" {one.metavar}" if one.metavar else ""
            names = [_argument(one)] if argument else [f"{name}{metavar}" for name in one.opts]
            default = "" if one.default in (None, "", False, ()) else f" Default: `{one.default}`."
            yield ", ".join(f"`{name}`" for name in (*names, *one.secondary_opts)), f"{one.help}{default}"


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name.upper()).rstrip("…").replace("|", " or ")
    many = "…" if parameter.nargs != 1 else ""
    return f"{name}{many}" if parameter.required else f"[{name}{many}]"
