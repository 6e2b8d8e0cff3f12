"""The command line. Exit codes: 0, 1 for a failure, 2 for wrong usage."""

from __future__ import annotations

import sys

from streamkeeper import __version__
from streamkeeper.cli import output
from streamkeeper.errors import StreamkeeperError, UsageError


def main() -> None:
    """Run ``streamkeeper``; print errors that are meant for the user as they stand, on standard error."""
    output.ready()
    try:
        _check_readable(sys.argv[1:])
        if not _look_only(sys.argv[1:]):
            _run_app()
    except StreamkeeperError as error:
        output.say(f"streamkeeper: {error}")
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        _tell_lost()


def _check_readable(arguments: list[str]) -> None:
    """Check that all arguments can be stored as text: letters unknown to the locale cannot.

    :raises UsageError: some cannot, and they are no path to inspect.
    """
    for item in arguments:
        if arguments[0] != "inspect" and any("\ud800" <= letter <= "\udfff" for letter in item):
            raise UsageError(
                f"The argument {item!a} has letters that the locale of this terminal cannot read. Set"
                " LC_ALL=C.UTF-8, or use others."
            )


def _tell_lost() -> None:
    """Report that a result could not be printed; the work that it describes is done."""
    error = output.lost()
    if error is not None:
        output.say(
            f"streamkeeper: the result could not be printed: {error}. Free some space, and run"
            " `streamkeeper flows`."
        )
        sys.exit(1)


def _run_app() -> None:
    try:
        from streamkeeper.cli.commands import app
    except ImportError as error:
        sys.exit(
            f"The command line needs a package that is not installed: {error}. Install"
            " streamkeeper-airflow[cli]."
        )
    app()


def _look_only(arguments: list[str]) -> bool:
    """Carry out a plain ``inspect``, ``flows`` or ``--version`` without typer, and return whether it was one.

    The first two are called in loops and by hand, and importing typer (with pydantic) takes longer than they
    do; the last is asked where typer is not installed. Help and wrong usage are left to typer.
    """
    if arguments == ["--version"]:
        output.put(f"streamkeeper {__version__}")
        return True
    command, parameters = arguments[:1], arguments[1:]
    places = [item for item in parameters if not item.startswith("-")]
    flags = sorted(item for item in parameters if item.startswith("-"))
    if (
        command == ["inspect"]
        and len(places) == 1
        and flags in ([], ["--files"], ["--json"], ["--files", "--json"])
    ):
        from streamkeeper.cli.inspecting import show_place

        show_place(places[0], files="--files" in flags, as_json="--json" in flags)
        return True
    if command == ["flows"] and not places and flags in ([], ["--json"]):
        from streamkeeper.cli.listing import show_flows

        show_flows(as_json=bool(flags))
        return True
    return False
