"""The command line, by the commands that it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from streamkeeper.cli.commands import app
from tools.docs.made import from_docstring, table


def commands() -> str:
    """Return a section for each command, with its options and its example."""
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    head = ["Options before the command:", "", table(("option", "what it does"), _rows(command))]
    return "\n".join([*head, *(line for one in command.commands.values() for line in _section(one))])


def _section(command: Any) -> Iterator[str]:
    arguments = "".join(f" {_argument(one)}" for one in command.params if one.param_type_name == "argument")
    kind = " KIND [OPTIONS]" if isinstance(command, TyperGroup) else ""
    yield from (
        f"## {command.name}",
        "",
        "```text",
        f"streamkeeper {command.name}{arguments}{kind}",
        "```",
        "",
    )
    yield from (from_docstring(command.help or ""), "")
    if kind:
        yield from ("[The kinds, and the options of each](recoveries.md).", "")
    if rows := list(_rows(command)):
        yield table(("argument or option", "what it does"), rows)
    if command.epilog:
        yield from (f"Example: `{command.epilog.removeprefix('Example: ')}`", "")


def _rows(command: Any) -> Iterator[tuple[str, str]]:
    """Yield a row for each parameter that is explained."""
    for one in command.params:
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
