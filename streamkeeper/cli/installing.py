"""``streamkeeper init``, ``setup``, ``doctor`` and ``adopt``: how Streamkeeper comes into an Airflow."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamkeeper.cli.examples import example
from streamkeeper.cli.output import Grid, say, show
from streamkeeper.cli.running import AsJson

if TYPE_CHECKING:
    from streamkeeper.install.probes import Row


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command(epilog=example("doctor"))(doctor)
    app.command(epilog=example("setup"))(setup)
    app.command(epilog=example("init"))(init)
    app.command(epilog=example("adopt"))(adopt)


def doctor(
    *,
    deadline: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="How long one thing may take to answer.")
    ] = 180.0,
    json: AsJson = False,
) -> None:
    """Tell what of this installation is right, and what to do about the rest. Exit code 1: something fails.

    It looks at this host, the folders of the settings, Spark with its jars, and at Airflow, where this Python
    has it.
    """
    from streamkeeper.install.doctor import examine

    _show(examine(deadline), json)


def setup(
    *,
    master: Annotated[
        str | None, typer.Option(help="Spark's master, for the connection of the drivers.", metavar="MASTER")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Slots of the pool: as many drivers run at once.")
    ] = None,
    airflow_url: Annotated[
        str | None,
        typer.Option("--airflow-url", metavar="URL", help="Airflow's address, for notes on parked runs."),
    ] = None,
    login: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who logs in there; standard input has the password.")
    ] = None,
    flows: Annotated[bool, typer.Option("--flows", help="Unpause the DAGs of flows, too.")] = False,
    json: AsJson = False,
) -> None:
    """Make what Airflow lacks for Streamkeeper: the pool, the connections, and DAGs that must not be paused.

    What is there stays as it is, so it can be run again. DAGs of flows stay paused unless --flows is given.
    """
    from streamkeeper.install import airflow_side

    if airflow_url is not None and not airflow_url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"--airflow-url {airflow_url!r} is no address such as http://airflow:8080.")
    if (airflow_url is None) != (login is None):
        raise typer.BadParameter("--airflow-url and --login go together.")
    password = None if login is None else _password()
    request = {"master": master, "slots": slots, "url": airflow_url, "login": login, "password": password}
    _show(airflow_side.set_up({**request, "flows": flows}), json)


def init(
    folder: Annotated[Path, typer.Argument(help="The folder of the new project.", metavar="DIR")],
    *,
    json: AsJson = False,
) -> None:
    """Write a first pipeline with its test, the DAG file, settings, and files for Docker, Helm and GitHub.

    Nothing is written if one of the files is there already.
    """
    from streamkeeper.install.project import init as written

    files = [str(path) for path in written(folder)]
    lines = [*files, f"What comes next, and in which order, is in {folder}/README.md."]
    show({"files": files}, json, "\n".join(lines))


def adopt(
    *,
    scan: Annotated[Path, typer.Option(help="The folder of the DAG files.", metavar="DAGS_FOLDER")],
    write: Annotated[
        Path | None, typer.Option(help="Also draft a pipeline file a job into this folder.", metavar="FOLDER")
    ] = None,
    job: Annotated[
        list[str] | None, typer.Option(metavar="DAG.TASK", help="Draft only this job; may be repeated.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The checkpoint of the one job to draft."),
    ] = None,
    json: AsJson = False,
) -> None:
    """List the Spark jobs of a folder of DAGs: their checkpoints, what each could become, and what hinders.

    Files are read, and nothing is run or imported. You complete a draft; `streamkeeper plan adopt` then says
    what its adoption would do.
    """
    from streamkeeper.install.job_drafts import CHECKPOINTS, write_drafts
    from streamkeeper.install.job_scan import scan as scanned

    folder_scan = scanned(scan)
    drafts = {} if write is None else write_drafts(folder_scan, write, job or (), checkpoint)
    heading = ("job", "application", "checkpoint", "could become", "what hinders")
    cells = [
        (
            item.name,
            item.application or "?",
            (item.query and item.query.checkpoint) or "?",
            item.becomes,
            "; ".join(item.hinders) or "nothing known",
        )
        for item in folder_scan.jobs
    ]
    lines = [f"not read: {file}: {reason}" for file, reason in folder_scan.unread.items()]
    lines += [f"{name}: drafted {file}" for name, file in drafts.items()]
    if write is not None and len(drafts) > 1:
        lines.append(
            f'adopt all in one plan: streamkeeper plan adopt --checkpoints "$(cat {write / CHECKPOINTS})"'
            " --old-job-is-stopped"
        )
    show(
        {
            "jobs": [{"job": item.name, **asdict(item)} for item in folder_scan.jobs],
            "unread": folder_scan.unread,
            "drafts": drafts,
        },
        json,
        Grid(heading, cells) if cells else f"No task of {scan} uses SparkSubmitOperator.",
    )
    for line in lines:
        say(line)


def _password() -> str:
    """Return what is typed, unseen; or the first line of standard input, where that is no terminal."""
    if sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, err=True))
    return sys.stdin.readline().rstrip("\n")


def _show(rows: Sequence[Row], as_json: bool) -> None:
    """Print rows, and end with 1 where one fails."""
    cells = [
        (row.state, row.name, f"{row.detail} → {row.advice}" if row.advice else row.detail) for row in rows
    ]
    show([asdict(row) for row in rows], as_json, Grid(("state", "of", "what is so, and what to do"), cells))
    if any(row.state == "fail" for row in rows):
        raise typer.Exit(1)
