"""A source as it is declared, made into one that can be opened here and now: the environment filled in, the
table's name made a path.

What is declared is kept in the manifest, for all to read. So ``{env:NAME}`` stays there as it is, and each
process that opens a source fills in what its own environment holds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from streamkeeper.declare.model import Source
from streamkeeper.errors import SettingsError
from streamkeeper.manifest.manifest import Flow
from streamkeeper.settings import Settings
from streamkeeper.user_environment import PLACEHOLDER, variables_in, why_refused


def opened(source: Source, settings: Settings, environment: Mapping[str, str] | None = None) -> Source:
    """Give a source with its options filled in from ``environment`` (``os.environ`` by default), and the path
    of its table.

    :raises SettingsError: an environment variable that it names is not set, or is none that pipelines may
        see.
    """
    refused = why_refused(variables(source), settings.pipeline_env)
    if refused is not None:
        raise SettingsError(f"{source.where}: the source {source.name} cannot be opened: {refused}.")
    env = os.environ if environment is None else environment
    missing = [name for name in variables(source) if not env.get(name)]
    if missing:
        raise SettingsError(
            f"{source.where}: the source {source.name} needs {', '.join(missing)} in the environment, which"
            " this process lacks. Set it for Airflow, its workers and the command line alike."
        )
    options = {
        key: PLACEHOLDER.sub(lambda match: env[match[1]], value) for key, value in source.options.items()
    }
    path = settings.table_path(source.table) if source.table is not None else source.path
    return replace(source, options=options, path=path)


def opened_if_possible(source: Source, settings: Settings) -> Source:
    """Give a source opened as far as this process can: with ``{env:NAME}`` left in its options where one may
    not be seen, or is not set.
    """
    try:
        return opened(source, settings)
    except SettingsError:
        return replace(
            source, path=settings.table_path(source.table) if source.table is not None else source.path
        )


def opened_flow(flow: Flow, settings: Settings, how: Callable[[Source, Settings], Source] = opened) -> Flow:
    """Give a flow with the sources that it reads opened; the other sources of its file stay as they are.

    :param how: :func:`opened`, or :func:`opened_if_possible`.
    :raises SettingsError: an environment variable that one of them names is not set.
    """
    pipeline = flow.pipeline
    read = {source.name: how(source, settings) for source in pipeline.sources_of(flow.declaration)}
    return replace(
        flow,
        pipeline=replace(
            pipeline, sources=tuple(read.get(source.name, source) for source in pipeline.sources)
        ),
    )


def variables(source: Source) -> tuple[str, ...]:
    """Give the environment variables that a source's options name, each once, in their order."""
    return variables_in(source.options.values())
