"""Sources ready to open: the environment filled into their options, the table's name turned into a path. A
name of the session catalog leads where the last driver found it.

Declarations are kept in the manifest, which everybody may read. So ``{env:NAME}`` and ``{conn:NAME.FIELD}``
stay as they are there, and each process that opens a source fills in its own environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from streamkeeper.declare.model import AnyFlow, AutoCdcFlow, Source
from streamkeeper.errors import SettingsError
from streamkeeper.manifest.manifest import Flow
from streamkeeper.manifest.named_tables import named_table
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper.support import connections
from streamkeeper.support.user_environment import PLACEHOLDER, variables_in, why_refused


def opened(source: Source, settings: Settings, environment: Mapping[str, str] | None = None) -> Source:
    """Return a source with its options filled in from ``environment`` (``os.environ`` by default), and its
    table's path.

    :raises SettingsError: an environment variable in its options is not set, or pipelines may not see it.
    """
    subject = f"{source.location}: the source {source.name}"
    options = filled(subject, source.options, settings, environment)
    bounded = _bounded(source, options, settings.read_at_most)
    return replace(source, options={**options, **bounded}, path=path_of(source, settings))


def path_of(source: Source, settings: Settings) -> str | None:
    """Return the path or URL of a source; None if it has none, or no driver has looked its name up yet."""
    if source.table is not None:
        return settings.table_path(source.table)
    if source.registered_as is None or source.path is not None:
        return source.path
    known = named_table(open_storage(settings.state), source.registered_as)
    return None if known is None else known.location


def filled(
    subject: str,
    options: Mapping[str, str],
    settings: Settings,
    environment: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return options filled in from ``environment`` (``os.environ`` by default) and Airflow's connections.

    :param subject: file, line and what has them, for the message.
    :raises SettingsError: an environment variable in them is not set, or pipelines may not see it; or this
        process cannot get the value of a connection.
    """
    names = variables_in(options.values())
    refused = why_refused(names, settings.pipeline_env)
    if refused is not None:
        raise SettingsError(f"{subject} cannot be opened: {refused}.")
    env = os.environ if environment is None else environment
    missing = [name for name in names if not env.get(name)]
    if missing:
        raise SettingsError(
            f"{subject} needs {', '.join(missing)} in the environment, which this process lacks. Set it for"
            " Airflow, its workers and the command line alike."
        )
    values = {key: PLACEHOLDER.sub(lambda match: env[match[1]], value) for key, value in options.items()}
    try:
        return {key: connections.filled(value) for key, value in values.items()}
    except SettingsError as error:
        raise SettingsError(f"{subject} cannot be opened: {error}") from error


def _bounded(source: Source, options: Mapping[str, str], most: int) -> Mapping[str, str]:
    """Return the option that bounds a batch, if it must read less than declared."""
    limit = source.kind.limit
    declared = next((value for name, value in options.items() if name.lower() == limit.lower()), "")
    if not most or not limit or (declared.isdecimal() and int(declared) <= most):
        return {}
    return {next((name for name in options if name.lower() == limit.lower()), limit): str(most)}


def opened_if_possible(source: Source, settings: Settings) -> Source:
    """Return a source opened as far as this process can.

    ``{env:NAME}`` and ``{conn:NAME.FIELD}`` stay in its options if a variable is not set, pipelines may not
    see it, or this process has no connections.
    """
    try:
        return opened(source, settings)
    except SettingsError:
        return replace(source, path=path_of(source, settings))


def opened_flow(flow: Flow, settings: Settings, how: Callable[[Source, Settings], Source] = opened) -> Flow:
    """Return a flow with the sources that it reads opened, and the path of its initial state's table; the
    other sources of its file stay as they are.

    :param how: :func:`opened`, or :func:`opened_if_possible`.
    :raises SettingsError: an environment variable in the options of one is not set, or pipelines may not see
        it.
    """
    pipeline = flow.pipeline
    read = {source.name: how(source, settings) for source in pipeline.sources_of(flow.declaration)}
    return replace(
        flow,
        declaration=_with_path(flow.declaration, settings),
        pipeline=replace(
            pipeline, sources=tuple(read.get(source.name, source) for source in pipeline.sources)
        ),
    )


def _with_path(flow: AnyFlow, settings: Settings) -> AnyFlow:
    """Return a flow with the path of the table that its initial state is of, if it is of one."""
    initial_state = flow.initial_state
    if initial_state is None or initial_state.table is None or isinstance(flow, AutoCdcFlow):
        return flow
    return replace(flow, initial_state=replace(initial_state, path=settings.table_path(initial_state.table)))


def variables(source: Source) -> tuple[str, ...]:
    """Return the environment variables in a source's options, each once, in order of appearance."""
    return variables_in(source.options.values())
