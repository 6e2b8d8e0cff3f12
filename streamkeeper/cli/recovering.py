"""``streamkeeper plan``, ``recover`` and ``abandon``. The options of each recovery derive from its form."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from streamkeeper.cli.examples import example
from streamkeeper.cli.output import settings_in_use, show
from streamkeeper.cli.running import AsJson, user
from streamkeeper.errors import RequestError
from streamkeeper.settings import DEFAULT_MASTER, Settings
from streamkeeper.support.json_values import parse

if TYPE_CHECKING:
    from streamkeeper.manifest.manifest import Manifest
    from streamkeeper.recover.plans.kind import Kind
    from streamkeeper.recover.plans.plan import Plan
    from streamkeeper.recover.requests.form import FormField

Yes = Annotated[bool, typer.Option("--yes", help="Approve without asking.")]
Master = Annotated[
    str, typer.Option("--master", help="Spark's master, for the steps that need Spark and for drivers.")
]
Resume = Annotated[str, typer.Option("--resume", help="Continue this recovery, which was interrupted.")]

_TYPES: dict[str, type[Any]] = {"string": str, "number": float, "object": str}


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    groups = {
        "plan": (
            _Plans,
            "Show what a recovery would do and cost; nothing is changed. Exit code 1: it is refused.",
        ),
        "recover": (_Recovers, "Plan a recovery, ask for approval, and carry it out, without Airflow."),
    }
    for name, (commands, description) in groups.items():
        app.add_typer(
            typer.Typer(no_args_is_help=True, help=description, epilog=example(name)), name=name, cls=commands
        )
    app.command(epilog=example("abandon"))(abandon)


def abandon(
    recovery: Annotated[str, typer.Argument(help="The id of a recovery that was interrupted.")],
    *,
    json: AsJson = False,
) -> None:
    """Give up a recovery: its holds and locks are removed.

    What it has already changed stays, such as a generation that it decided.
    """
    from streamkeeper.recover import engine

    settings = settings_in_use()
    engine.abandon(settings, engine.pipeline_of(settings, recovery, or_over=True), recovery, user())
    show({"abandoned": recovery}, json, f"{recovery} is given up; its holds and locks are removed.")


class _Kinds(TyperGroup):
    """A command for each kind of recovery, created on demand, so that unused kinds are not imported."""

    make: Callable[[Kind], Callable[..., None]]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all kinds."""
        from streamkeeper.recover.plans.kind import KINDS

        return list(KINDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a kind; None if there is none of that name."""
        from streamkeeper.recover.plans.kind import KINDS, kind

        if cmd_name not in KINDS:
            return None
        app = typer.Typer(add_completion=False)
        app.command(cmd_name, epilog=example(f"{ctx.info_name} {cmd_name}"))(type(self).make(kind(cmd_name)))
        return typer.main.get_command(app)


def _plan_command(kind: Kind) -> Callable[..., None]:
    def run(*, master: str, json: bool, **values: Any) -> None:
        from streamkeeper.cli.recovery_session import Session
        from streamkeeper.recover import course, engine
        from streamkeeper.recover.plans import explain
        from streamkeeper.recover.plans import plan as plans

        settings = settings_in_use()
        id = _new_id(kind) if kind.unasked else "plan-only"
        plan = engine.plan(settings, kind, _request(settings, kind, values), id)
        session = Session(settings, plan, True, json, master)
        if not course.trial(plan):
            show(plans.to_json(plan), json, explain.as_text(plan))
            _exit_if_refused(plan)
            return
        session.tell(explain.as_text(plan))
        evidence = session.dry_run()
        show(
            {**plans.to_json(plan), "evidence": evidence},
            json,
            "\n".join(f"{step}: {step_evidence}" for step, step_evidence in evidence.items()),
        )
        _exit_if_refused(plan)

    return _with_options(run, kind, {})


def _exit_if_refused(plan: Plan) -> None:
    """End with exit code 1 where `recover` with the same options would refuse."""
    if plan.refusals:
        raise typer.Exit(1)


def _recover_command(kind: Kind) -> Callable[..., None]:
    def run(*, yes: bool, resume: str, master: str, json: bool, **values: Any) -> None:
        from streamkeeper.cli.recovery_session import Session
        from streamkeeper.recover import engine
        from streamkeeper.recover.plans import explain

        settings = settings_in_use()
        if resume:
            plan = engine.read_plan(settings, engine.pipeline_of(settings, resume, or_over=True), resume)
            if plan.recovery != kind.name:
                raise RequestError(
                    f"The recovery {resume} is a {plan.recovery}, no {kind.name}. Continue it with:"
                    f" streamkeeper recover {plan.recovery} --resume {resume}"
                )
        else:
            plan = engine.plan(settings, kind, _request(settings, kind, values), _new_id(kind))
        session = Session(settings, plan, yes, json, master)
        session.tell(explain.as_text(plan))
        evidence = session.carry_through()
        show({"recovery": plan.recovery_id, "evidence": evidence}, json, session.ending(evidence))

    return _with_options(run, kind, {"yes": Yes, "resume": Resume})


class _Plans(_Kinds):
    make = staticmethod(_plan_command)


class _Recovers(_Kinds):
    make = staticmethod(_recover_command)


def _with_options(run: Callable[..., None], kind: Kind, more: dict[str, Any]) -> Callable[..., None]:
    """Return a function whose signature has an option for each field of the kind's form, for typer."""
    from streamkeeper.manifest.manifest import Manifest
    from streamkeeper.recover.requests.form import APPROVAL, DRY_RUN

    fields = [field for field in kind.form(Manifest("", (), {}, {})) if field.name not in (APPROVAL, DRY_RUN)]
    options = {field.name: _option(field) for field in fields}
    defaults = {"resume": "", "master": DEFAULT_MASTER}
    common = {
        name: (annotation, defaults.get(name, False))
        for name, annotation in {**more, "master": Master, "json": AsJson}.items()
    }
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in {**options, **common}.items()
    ]

    def command(**values: Any) -> None:
        run(**values)

    command.__doc__ = kind.description
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _option(field: FormField) -> tuple[Any, Any]:
    """Return the annotation and the default of a field's option:

    None, for which the form's own default is used.
    """
    name = _flag(field)
    if field.type == "boolean":
        return Annotated[bool | None, typer.Option(f"{name}/--no-{name[2:]}", help=_help_text(field))], None
    if field.many:
        return Annotated[list[str] | None, typer.Option(name, help=_help_text(field))], None
    return Annotated[
        (int if field.whole else _TYPES[field.type]) | None, typer.Option(name, help=_help_text(field))
    ], None


def _flag(field: FormField) -> str:
    return f"--{field.name.replace('_', '-')}"


def _help_text(field: FormField) -> str:
    """Return an option's help: the form's text, the allowed values, and the default."""
    sentences = [f"Required. {field.description}" if field.required else field.description]
    if field.option:
        sentences.append(field.option)
    if field.type == "object":
        sentences.append("As JSON.")
    if field.enum:
        sentences.append(f"One of {', '.join(map(str, field.enum))}.")
    if field.default not in (None, "", (), []) and field.type != "boolean":
        sentences.append(f"Default: {_whole(field.default)}.")
    return " ".join(sentences)


def _request(settings: Settings, kind: Kind, values: dict[str, Any]) -> Any:
    """Return a request from the given options.

    :raises RequestError: a value does not fit.
    """
    from streamkeeper.manifest.manifest import read_manifest

    manifest = read_manifest(settings)
    fields = {field.name: field for field in kind.form(manifest)}
    form_values = {
        name: _value(fields[name], value, manifest)
        for name, value in values.items()
        if value is not None and value != []
    }
    return kind.parse(kind.request.shorthand(form_values), manifest, user())


def _value(field: FormField, value: Any, manifest: Manifest) -> Any:
    if field.many and field.names == "flow":
        return manifest.matching(value)
    if field.type != "object":
        return _whole(value)
    try:
        return parse(value)
    except ValueError as error:
        raise RequestError(
            f"{_flag(field)} {value!r} is not JSON ({error}). Give an object in quotes that the shell "
            """leaves alone, such as '{"name": {"0": 17}}'."""
        ) from error


def _whole(value: Any) -> Any:
    """Return a whole number as an int, so that no message says "3.0 batches"."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _new_id(kind: Kind) -> str:
    import uuid

    from streamkeeper.recover import engine

    return engine.recovery_id(kind.name, f"cli-{uuid.uuid4().hex[:12]}")
