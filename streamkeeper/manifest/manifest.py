"""Manifest: the declarations of all pipeline files, as JSON. DAGs, forms and pages read it and never import
user code.

It is written by the first process that needs it, or by ``streamkeeper check --write``. Another process
imports the files (streamkeeper.manifest.import_all). The path is
``{state}/manifests/<hash of the pipeline files>.json``.
A pipeline file that raises, exits, crashes or hangs does not affect other files' flows. Its own flows keep
their last declaration, with the error beside them.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from streamkeeper import __version__
from streamkeeper.declare.model import (
    AnyFlow,
    Pipeline,
    Source,
    Table,
    pipeline_from_json,
    pipeline_to_json,
)
from streamkeeper.errors import DeclarationError, RequestError, StorageError, StreamkeeperError
from streamkeeper.manifest import names, pipeline_files
from streamkeeper.manifest.import_all import BUILD_SECONDS, Imported, import_elsewhere
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, open_storage, read_json, to_json
from streamkeeper.support.json_values import parse, read_as
from streamkeeper.support.user_environment import is_allowed

FORMAT = 1
SETTLE = "streamkeeper.tables.claims:settle"
CHECK_SCHEDULES = "streamkeeper.recover.plans.schedules:check_schedules"
"""Checks of a whole manifest, by name: they need packages above this one."""
UNREADABLE = "unreadable"
"""Replaces the fingerprint of a flow whose pipeline file cannot be read."""
FOLDER = "(all)"
"""Key of the error that the files cannot be read now, so that all keep their last declaration."""

Import = Callable[[Settings, Sequence[Path]], Iterator[Imported]]
_ASKED_FOR = re.compile(rb"\bonly_where_set\(\s*[\"']([A-Za-z_][A-Za-z0-9_]*)[\"']")


@dataclass(frozen=True)
class Flow:
    """Flow in the manifest; with its last declaration where its pipeline file has an error (``broken``)."""

    pipeline: Pipeline
    declaration: AnyFlow
    fingerprint: str
    broken: bool = False

    @property
    def name(self) -> str:
        """The flow's own name."""
        return self.declaration.name

    @property
    def full_name(self) -> str:
        """``pipeline.flow``, as the command line and the forms show it."""
        return f"{self.pipeline.name}.{self.name}"

    @property
    def present(self) -> str:
        """The fingerprint that a driver would find now."""
        return UNREADABLE if self.broken else self.fingerprint

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every source that the flow reads, each once, in order of first use."""
        return self.pipeline.sources_of(self.declaration)

    @property
    def sink(self) -> Table | None:
        """The sink that the flow writes; None if it writes a table."""
        return self.pipeline.sink_of(self.declaration)

    @property
    def dag_id(self) -> str:
        """Id of the DAG that supervises the flow: its own, or the pipeline's if its flows share a driver."""
        if self.pipeline.shared_driver:
            return f"flows__{self.pipeline.name}"
        return f"flow__{self.pipeline.name}__{self.name}"


@dataclass(frozen=True)
class Manifest:
    """All pipelines that could be read, and the errors of the others.

    ``errors`` maps a pipeline's name to the message of its file; such a pipeline may still be among
    ``pipelines``, with its last declaration. ``left_out`` maps a pipeline that is not offered in this
    environment to the reason; its last declaration stays known in ``aside``. ``fingerprints`` and
    ``likenesses`` are those of the flows, by full name (streamkeeper.manifest.import_file).
    """

    key: str
    pipelines: tuple[Pipeline, ...]
    errors: dict[str, str]
    fingerprints: dict[str, str]
    left_out: dict[str, str] = field(default_factory=dict)
    likenesses: dict[str, str] = field(default_factory=dict)
    aside: tuple[Pipeline, ...] = ()

    def flows(self) -> Iterator[Flow]:
        """Yield every flow, pipeline by pipeline."""
        for pipeline in self.pipelines:
            for flow in pipeline.flows:
                mark = self.fingerprints[f"{pipeline.name}.{flow.name}"]
                yield Flow(pipeline, flow, mark, pipeline.name in self.errors)

    def pipeline(self, name: str) -> Pipeline | None:
        """Return a pipeline by name, or None."""
        return next((pipeline for pipeline in self.pipelines if pipeline.name == name), None)

    def writers(self, pipeline: str, table: str) -> list[Flow]:
        """Return the flows of a pipeline that write one of its tables."""
        return [
            flow
            for flow in self.flows()
            if flow.pipeline.name == pipeline and flow.declaration.target == table
        ]

    def find(self, name: str) -> Flow:
        """Return a flow by ``pipeline.flow``, or by its own name if only one pipeline has it.

        :raises RequestError: no flow has the name, or several have.
        """
        matches = [flow for flow in self.flows() if name in (flow.full_name, flow.name)]
        if len(matches) == 1:
            return matches[0]
        full_names = ", ".join(flow.full_name for flow in self.flows()) or "none"
        if matches:
            raise RequestError(
                f"{name!r} is the name of {len(matches)} flows. Name one of:"
                f" {', '.join(flow.full_name for flow in matches)}."
            )
        broken = "".join(
            f"\nThis pipeline file cannot be read: {message}" for message in self.errors.values()
        )
        raise RequestError(
            f"There is no flow {name!r}. Declared are: {full_names}. Correct the name, or declare the"
            f" flow.{broken}"
        )

    def matching(self, names: Iterable[str]) -> list[str]:
        """Return the full names of flows, each once, by their names or by patterns of full names (``*``,
        ``?`` and ``[…]``, as those of files).

        :raises RequestError: no flow has such a name, or several have.
        """
        matches: list[str] = []
        for name in names:
            if not any(sign in name for sign in "*?["):
                matches.append(self.find(name).full_name)
                continue
            fitting = [flow.full_name for flow in self.flows() if fnmatchcase(flow.full_name, name)]
            if not fitting:
                declared_names = ", ".join(flow.full_name for flow in self.flows()) or "none"
                raise RequestError(f"No flow fits the pattern {name!r}. Declared are: {declared_names}.")
            matches += fitting
        return list(dict.fromkeys(matches))


def settings_of(settings: Settings, pipelines: Collection[Pipeline]) -> Settings:
    """Return the settings with owner, tags, pool and connection of a pipeline; of several pipelines, with
    those that all of them have.
    """

    def shared(name: str, default: Any) -> Any:
        values = {getattr(pipeline, name) for pipeline in pipelines}
        return (values.pop() if len(values) == 1 else None) or default

    return replace(
        settings,
        dag_owner=shared("owner", settings.dag_owner),
        dag_tags=(*settings.dag_tags, *shared("tags", ())),
        pool=shared("pool", settings.pool),
        connection=shared("connection", settings.connection),
    )


def files_key(settings: Settings) -> str:
    """Return a hash of all that a manifest depends on.

    It covers names and bytes of the pipeline files, the data folder, the variables and connections that
    pipelines may see, whether those of ``only_where_set`` are set, the number of renames, and the release.

    :raises SettingsError: the pipelines folder does not exist.
    """
    renamed = names.read(open_storage(settings.state)).number
    visible = f"{settings.pipeline_env} {settings.pipeline_connections}"
    settings_text = f"{settings.data} {visible} {renamed}"
    digest = hashlib.sha256(f"{FORMAT} {__version__} {settings_text}".encode())
    for file in pipeline_files.listed(settings.pipelines):
        digest.update(f"\0{file.relative_to(settings.pipelines)}\0".encode(errors="surrogateescape"))
        content = pipeline_files.content(file)
        digest.update(b"unreadable" if content is None else content)
        for name in (variable.decode() for variable in _ASKED_FOR.findall(content or b"")):
            is_set = is_allowed(name, settings.pipeline_env) and bool(os.environ.get(name))
            digest.update(f"\0{is_set}".encode())
    return digest.hexdigest()[:32]


def read_manifest(settings: Settings) -> Manifest:
    """Return the manifest of the current pipeline files, made anew in another process if their hash is new.

    If they cannot be read now, all flows keep their last declaration, with the error under :data:`FOLDER`:
    what runs continues.

    :raises StorageError: the state folder cannot be read.
    :raises StreamkeeperError: the files cannot be read, and there is no earlier manifest.
    """
    storage = open_storage(settings.state)
    try:
        return _read(storage, _file(files_key(settings))) or make_manifest(settings)
    except Exception as error:  # every DAG file calls this: no surprise may take them all away
        last = _latest(storage)
        if last is None:
            raise
        message = (
            "The pipeline files cannot be read, and are tried again; until then all flows keep their last"
            f" declaration. {error if isinstance(error, StreamkeeperError) else repr(error)}"
        )
        return replace(last, errors={**last.errors, FOLDER: pipeline_files.as_text(message)})


def import_manifest(settings: Settings, import_files: Import = import_elsewhere) -> Manifest:
    """Import every pipeline file, and return the manifest beside the last one; nothing is written.

    :param import_files: imports files and yields the result of each; by default in another process.
    :raises SettingsError: the pipelines folder does not exist.
    :raises StorageError: the state folder cannot be read.
    :raises StreamkeeperError: a pipeline file changed meanwhile, or the files cannot be imported at all.
    """
    before, began = _latest(open_storage(settings.state)), time.monotonic()
    for is_last in (False, True):
        key = files_key(settings)
        built, names = _build(settings, import_files, before)
        # Otherwise the manifest of one set of files would stay under the hash of another.
        if files_key(settings) == key:
            break
        # A file that renames or removes itself has done so by now, and the next import finds the rest.
        if is_last or time.monotonic() - began > BUILD_SECONDS / 2:
            raise _changed_meanwhile(key)
    manifest: Manifest = resolve_name(SETTLE)(settings, built.finish(key), before, names)
    return manifest


def make_manifest(settings: Settings, import_files: Import = import_elsewhere) -> Manifest:
    """Import every pipeline file, and write the manifest.

    :raises StorageError: the state folder cannot be written.
    :raises StreamkeeperError: as :func:`import_manifest`.
    """
    manifest = import_manifest(settings, import_files)
    storage = open_storage(settings.state)
    storage.overwrite(_file(manifest.key), to_json(_to_json(manifest)))
    storage.overwrite(_LATEST, to_json({"key": manifest.key}))
    return manifest


def declared(settings: Settings) -> Manifest:
    """Import every pipeline file in another process, and return what they declare, without a key. The state
    folder is neither read nor written, and nothing is kept of a file that cannot be read: no flow runs by
    this.

    :raises SettingsError: the pipelines folder does not exist.
    :raises StreamkeeperError: the files cannot be imported at all.
    """
    built, _ = _build(settings, import_elsewhere, None)
    return built.finish("")


def _build(settings: Settings, import_files: Import, before: Manifest | None) -> tuple[_Building, set[str]]:
    """Import every pipeline file; return what is found, and the names of all files."""
    built = _Building(settings, before)
    contents = {file: pipeline_files.content(file) for file in pipeline_files.pipelines(settings.pipelines)}
    declaring = [file for file, content in contents.items() if content and pipeline_files.declares(content)]
    results = dict(zip(declaring, import_files(settings, declaring), strict=True))
    for file, content in contents.items():
        if file in results:
            built.add(file, results[file])
        else:
            built.pass_over(file, readable=content is not None)
    return built, {pipeline_files.name(file) for file in contents}


class _Building:
    """Builder of a manifest; a file that cannot be read keeps its last declaration, from ``before``."""

    def __init__(self, settings: Settings, before: Manifest | None) -> None:
        self.settings = settings
        self.before = before
        self.pipelines: list[Pipeline] = []
        self.errors: dict[str, str] = {}
        self.fingerprints: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.likenesses: dict[str, str] = {}
        self.aside: list[Pipeline] = []

    def add(self, file: Path, imported: Imported) -> None:
        """Add the result of importing a pipeline file, or its error."""
        name = pipeline_files.name(file)
        if imported.left_out is not None:
            self.left_out[name] = imported.left_out
            self._keep_last(name, self.aside)
            return
        try:
            if imported.pipeline is None:
                raise DeclarationError(imported.error or f"{name}.py declares nothing.")
            self._check_sinks(imported.pipeline)
            resolve_name(CHECK_SCHEDULES)(
                imported.pipeline, Manifest("", (imported.pipeline,), {}, imported.fingerprints)
            )
        except DeclarationError as error:
            self.errors[name] = str(error)
            self._keep_last(name, self.pipelines)
            return
        self.pipelines.append(imported.pipeline)
        self.fingerprints |= imported.fingerprints
        self.likenesses |= imported.likenesses

    def pass_over(self, file: Path, *, readable: bool) -> None:
        """Treat a file without declarations as a helper module, unless it was a pipeline before."""
        name = pipeline_files.name(file)
        if not readable:
            self.errors[name] = f"{name}.py, line 1: the file cannot be read. Check its owner and mode."
        # A pipeline file without declarations was perhaps saved half-way.
        elif self.before is not None and self.before.pipeline(name) is not None:
            self.errors[name] = (
                f"{name}.py, line 1: the file declared flows and no longer imports streamkeeper. Until it"
                " does, they keep their last declaration. To remove the flows, remove the file."
            )
        if name in self.errors:
            self._keep_last(name, self.pipelines)

    def _check_sinks(self, pipeline: Pipeline) -> None:
        for table in pipeline.tables:
            path = table.properties.get("path") if table.sink else None
            if path is not None and (refused := self.settings.why_outside(path)) is not None:
                raise DeclarationError(f"{table.location}: the path of sink {table.name}: {refused}")

    def finish(self, key: str) -> Manifest:
        """Return the manifest."""
        parts = (self.errors, self.fingerprints, self.left_out, self.likenesses)
        return Manifest(key, tuple(self.pipelines), *parts, tuple(self.aside))

    def _keep_last(self, name: str, among: list[Pipeline]) -> None:
        last = self.before.pipeline(name) if self.before is not None else None
        if self.before is not None and last is not None:
            among.append(last)
            self.fingerprints |= of_pipeline(self.before.fingerprints, name)
            self.likenesses |= of_pipeline(self.before.likenesses, name)


def of_pipeline(marks: dict[str, str], pipeline: str) -> dict[str, str]:
    """Return the marks, by full name, of a pipeline's flows."""
    return {name: mark for name, mark in marks.items() if name.partition(".")[0] == pipeline}


def _changed_meanwhile(key: str) -> StreamkeeperError:
    return StreamkeeperError(
        f"The pipeline files changed while they were read (their hash was {key}). Nothing was written. Run"
        " `streamkeeper check` again."
    )


def _file(key: str) -> str:
    return f"manifests/{key}.json"


_LATEST = "manifests/latest.json"


def _latest(storage: Storage) -> Manifest | None:
    """Return the manifest that was written last, with the last declarations of what its environment left out;
    None if there is none that this release can read.
    """
    try:
        pointer = read_json(storage, _LATEST) or {}
    except StorageError:
        return None
    last = _read(storage, _file(str(pointer.get("key"))))
    return None if last is None else replace(last, pipelines=(*last.pipelines, *last.aside), aside=())


def _read(storage: Storage, name: str) -> Manifest | None:
    """Return a manifest; None if it is missing or damaged, as it can be made again from the files."""
    content = storage.read(name)
    try:
        return None if content is None else _from_bytes(content)
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return None


@lru_cache(2)
def _from_bytes(content: bytes) -> Manifest:
    """Return a manifest from a file's bytes. A process asks for the same one over and over."""
    return _from_json(parse(content))


def _to_json(manifest: Manifest) -> dict[str, Any]:
    pipelines, aside = ([*map(pipeline_to_json, each)] for each in (manifest.pipelines, manifest.aside))
    return {**vars(manifest), "format": FORMAT, "pipelines": pipelines, "aside": aside}


def _from_json(value: dict[str, Any]) -> Manifest:
    if value["format"] > FORMAT:
        raise ValueError("it is of a later release")
    field_values = {field.name: value[field.name] for field in fields(Manifest) if field.name in value}
    for name in ("pipelines", "aside"):
        field_values[name] = tuple(map(pipeline_from_json, value.get(name, ())))
    manifest = read_as(Manifest, field_values)
    for flow in manifest.flows():
        flow.pipeline.sources_of(flow.declaration)  # each is declared
    return manifest
