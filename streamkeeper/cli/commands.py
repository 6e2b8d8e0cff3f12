"""The commands of ``streamkeeper``. ``check``, ``flows``, ``inspect`` and ``plan`` start no JVM.

Each command imports what it needs by itself, so that a short command does not pay for the imports of others.
"""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamkeeper import __version__
from streamkeeper.cli.examples import example
from streamkeeper.cli.output import put, settings_in_use, show
from streamkeeper.cli.running import AsJson, user
from streamkeeper.settings import Settings, of_environment

if TYPE_CHECKING:
    from streamkeeper.trial.verdict import Verdict

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help=(
        "Keep streaming flows running, and recover them. Exit codes: 0, 1 for a failure, 2 for wrong usage."
    ),
)


def _tell_version(requested: bool) -> None:
    if requested:
        put(f"streamkeeper {__version__}")
        raise typer.Exit


@app.callback(epilog=example(""))
def _main(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_tell_version, is_eager=True)
    ] = False,
    env: Annotated[
        str, typer.Option("--env", help="Take the settings of this environment, from its file NAME.env.")
    ] = "",
) -> None:
    if env:
        os.environ.update(of_environment(env))


def _with_pipelines(folder: Path | None) -> Settings:
    """Return the settings, with another folder of pipeline files if there is one."""
    settings = settings_in_use()
    return settings if folder is None else replace(settings, pipelines=folder.resolve())


@app.command(epilog=example("check"))
def check(
    *,
    analyze: Annotated[
        bool, typer.Option("--analyze", help="Also let Spark plan every query, on sources without rows.")
    ] = False,
    pipelines: Annotated[
        Path | None, typer.Option(help="Check the pipeline files of this folder, such as a branch's.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Also write the manifest, by which flows are scheduled.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Import every pipeline file, and report what is wrong with it. Nothing is written without --write.

    Exit code 1: a file cannot be used, or with --analyze Spark rejects a query; 4: a query could not be
    analyzed.
    """
    from streamkeeper.clusters.host import check_spark
    from streamkeeper.declare.driver import packages_note
    from streamkeeper.manifest.manifest import import_manifest, make_manifest
    from streamkeeper.trial.verdict import EXIT_CODES, worst

    if write and pipelines is not None:
        raise typer.BadParameter(
            "give --write or --pipelines: only the manifest of STREAMKEEPER_PIPELINES, which flows run by, is"
            " written"
        )
    settings = _with_pipelines(pipelines)
    check_spark()
    manifest = make_manifest(settings) if write else import_manifest(settings)
    flows = list(manifest.flows())
    notes = [note for flow in flows if (note := packages_note(flow.declaration)) is not None]
    value = {
        "manifest": manifest.key,
        "flows": [
            {"flow": flow.full_name, "target": flow.declaration.target, "fingerprint": flow.fingerprint}
            for flow in flows
        ],
        "errors": dict(manifest.errors),
        "left_out": dict(manifest.left_out),
        "notes": notes,
    }
    lines = [f"{flow.full_name} → {flow.declaration.target}  {flow.fingerprint}" for flow in flows]
    lines += [f"note: {note}" for note in notes]
    lines += [f"left out: {message}" for message in manifest.left_out.values()]
    lines += [f"error: {message}" for message in manifest.errors.values()]
    planned: tuple[Verdict, ...] = ()
    if analyze:
        from streamkeeper.trial import look

        planned = tuple(look.tried(settings, flows, "--analyze")) if flows else ()
        value["analyzed"] = [asdict(verdict) for verdict in planned]
        lines += [verdict.in_words() for verdict in planned]
    show(value, json, "\n".join(lines or ["No pipeline is declared."]))
    code = 1 if manifest.errors else EXIT_CODES[worst(planned)]
    if code:
        raise typer.Exit(code)


@app.command(epilog=example("metrics"))
def metrics(
    *,
    otlp: Annotated[
        bool,
        typer.Option("--otlp", help="Push them to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names."),
    ] = False,
) -> None:
    """Print the metrics of all flows in Prometheus' text format, or push them over OTLP."""
    from streamkeeper.cli.listing import show_metrics

    show_metrics(otlp)


@app.command(epilog=example("inspect"))
def inspect(
    place: Annotated[
        str,
        typer.Argument(
            help="A flow, or the path or URL of any Structured Streaming checkpoint.", metavar="FLOW|PATH"
        ),
    ],
    *,
    files: Annotated[
        bool, typer.Option("--files", help="Count processed files too; this reads the whole files log.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Read a checkpoint: last batch, positions, operators, watermark, damage."""
    from streamkeeper.cli.inspecting import show_place

    show_place(place, files, json)


@app.command(epilog=example("preflight"))
def preflight(
    flow: Annotated[
        list[str] | None,
        typer.Argument(help="Flows, as pipeline.flow or by a pattern such as 'orders.*'; default: all."),
    ] = None,
    *,
    pipelines: Annotated[
        Path | None, typer.Option(help="The folder with the pipeline files that are to be deployed.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Check whether changed flows fit their checkpoints, before they are deployed.

    Nothing is changed, and flows run on. A changed declaration is tried in Spark on this machine, by a batch
    without rows on a copy of the newest state. Exit code 0: all are compatible; 1: one is incompatible; 4:
    one is unknown.
    """
    from streamkeeper.manifest.manifest import declared
    from streamkeeper.recover.impact import with_impact
    from streamkeeper.trial import look
    from streamkeeper.trial.verdict import EXIT_CODES, worst

    new = _with_pipelines(pipelines)
    settings = Settings.from_environment()
    manifest = declared(new)
    verdicts = tuple(
        with_impact(settings, verdict)
        for verdict in look.verdicts(settings, new, manifest, manifest.matching(flow or ()))
    )
    text = "\n".join(verdict.in_words() for verdict in verdicts) or "No flow is declared."
    show([asdict(verdict) for verdict in verdicts], json, text)
    code = EXIT_CODES[worst(verdicts)]
    if code:
        raise typer.Exit(code)


@app.command(epilog=example("advise"))
def advise(
    flow: Annotated[str, typer.Argument(help="A flow, as PIPELINE.FLOW.", metavar="FLOW")],
    *,
    json: AsJson = False,
) -> None:
    """Suggest settings to change, from the numbers of a flow's recent batches, its state and its table.

    Nothing is changed, and no JVM is started.
    """
    from streamkeeper.cli.listing import show_advice

    show_advice(flow, json)


@app.command("backups", epilog=example("backups"))
def list_backups(
    table: Annotated[
        str | None, typer.Option(help="Only those of this table.", metavar="[PIPELINE.]TABLE")
    ] = None,
    *,
    json: AsJson = False,
) -> None:
    """List the backups that restore_table can restore."""
    from streamkeeper.cli.table_list import show_backups

    show_backups(table, json)


@app.command("tables", epilog=example("tables"))
def list_tables(*, json: AsJson = False) -> None:
    """List the tables of all pipelines: place, owner, flows, size, and their names in the session catalog."""
    from streamkeeper.cli.table_list import show_tables

    show_tables(json)


@app.command(epilog=example("rename"))
def rename(
    old: Annotated[str, typer.Argument(help="A flow, as PIPELINE.FLOW, or a pipeline.", metavar="OLD")],
    new: Annotated[str, typer.Argument(help="Its name from now on, of the same kind.", metavar="NEW")],
    *,
    json: AsJson = False,
) -> None:
    """Rename a flow or a pipeline: it keeps its generations, its tables and its history.

    Its drivers must be stopped, and no recovery of the pipeline may be open. Also change the name in the
    declaration of the flow, or the name of the pipeline's file, before or after.
    """
    from streamkeeper.flows import rename as renaming

    done = renaming.rename(settings_in_use(), old, new, user())
    lines = [f"{old} is named {new} {'already' if done.done_before else 'now'}."]
    lines += [f"{name} continues in generation {number}." for name, number in done.flows.items()]
    todo = f"Declare the flow as {new.partition('.')[2]!r}" if "." in new else f"Name the file {new}.py"
    lines += [f"{todo}, unless that was done."]
    show(
        {"old": old, "new": new, "flows": done.flows, "done_before": done.done_before}, json, "\n".join(lines)
    )


@app.command("jars", epilog=example("jars"))
def fetch_jars(
    folder: Annotated[
        Path | None,
        typer.Argument(help="The folder to fill; STREAMKEEPER_JARS by default."),
    ] = None,
    *,
    s3: Annotated[bool, typer.Option("--s3", help="Also those for state and tables on S3.")] = False,
    avro: Annotated[bool, typer.Option("--avro", help="Also Spark's Avro.")] = False,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Take jars from this folder first, where there is no network."),
    ] = None,
    mirror: Annotated[
        str | None, typer.Option(help="URL of a Maven repository to ask instead of Maven Central.")
    ] = None,
) -> None:
    """Make a folder hold exactly the jars that drivers need besides Spark's, by name and SHA-256 of the lock.

    A folder that is complete is only read. Jars that are not in the lock are removed from it.
    """
    from streamkeeper.jars import folder as jars

    chosen = (folder or Settings.from_environment().jars).absolute()
    locks = [jars.LOCK, *([jars.S3_LOCK] if s3 else []), *([jars.AVRO_LOCK] if avro else [])]
    changed = jars.ensure(chosen, *locks, source=source, mirror=mirror)
    put(f"{chosen} has {'now' if changed else 'already'} all {len(jars.read_lock(*locks)) + 1} jars.")


from streamkeeper.cli import installing, past, recovering, running, watching  # noqa: E402

watching.register(app)
recovering.register(app)
running.register(app)
past.register(app)
installing.register(app)
