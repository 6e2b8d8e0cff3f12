"""The manifest: what all pipeline files declare, as JSON. DAGs, forms and pages read it and never import user
code.

It is written by ``streamkeeper check``, and by whoever needs it first, of what another process imported
(streamkeeper.manifest.import_all). It lies at ``{state}/manifests/<hash of the pipeline files>.json``. A
pipeline file that raises, exits, crashes or hangs costs nobody else's flows: its own are kept as they were
last declared, with the error beside them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from streamkeeper import __version__
from streamkeeper.declare.model import AnyFlow, Pipeline, pipeline_from_json, pipeline_to_json
from streamkeeper.errors import DeclarationError, RequestError, StorageError, StreamkeeperError
from streamkeeper.manifest import import_all, names, pipeline_files
from streamkeeper.manifest.import_all import Imported
from streamkeeper.settings import Settings
from streamkeeper.storage import Storage, open_storage, read_json, to_json
from streamkeeper.user_environment import as_user_code_sees_it, is_allowed

FORMAT = 5
SETTLE = "streamkeeper.tables.claims:settle"
CHECK_SCHEDULES = "streamkeeper.recover.plans.schedules:check_schedules"
"""Checks of a whole manifest, by name: they need what stands above this package."""
FOLDER = "(all)"
"""Stands among a manifest's errors for all pipelines: the files cannot be looked at now, so all are as they
were last declared.
"""

_ASKED_FOR = re.compile(rb"\bonly_where_set\(\s*[\"']([A-Za-z_][A-Za-z0-9_]*)[\"']")


@dataclass(frozen=True)
class Flow:
    """A flow as the manifest knows it."""

    pipeline: Pipeline
    declaration: AnyFlow
    fingerprint: str

    @property
    def name(self) -> str:
        """The flow's own name."""
        return self.declaration.name

    @property
    def full_name(self) -> str:
        """``pipeline.flow``, the name that the command line and the forms show."""
        return f"{self.pipeline.name}.{self.name}"

    @property
    def dag_id(self) -> str:
        """The id of the DAG that supervises the flow: its own, or that of all flows of its pipeline where
        they share a driver.
        """
        if self.pipeline.shared_driver:
            return f"flows__{self.pipeline.name}"
        return f"flow__{self.pipeline.name}__{self.name}"


@dataclass(frozen=True)
class Manifest:
    """All pipelines that could be read, and what is wrong with the others.

    ``errors`` maps a pipeline's name to the message of its file; such a pipeline may still be among
    ``pipelines``, as it was last declared. ``left_out`` maps a pipeline that is not offered in this
    environment to the reason. ``fingerprints`` and ``likenesses`` are the flows', by full name
    (streamkeeper.manifest.import_file).
    """

    key: str
    pipelines: tuple[Pipeline, ...]
    errors: dict[str, str]
    fingerprints: dict[str, str]
    left_out: dict[str, str] = field(default_factory=dict)
    likenesses: dict[str, str] = field(default_factory=dict)

    def flows(self) -> Iterator[Flow]:
        """Give every flow, pipeline by pipeline."""
        for pipeline in self.pipelines:
            for flow in pipeline.flows:
                yield Flow(pipeline, flow, self.fingerprints[f"{pipeline.name}.{flow.name}"])

    def pipeline(self, name: str) -> Pipeline | None:
        """Give a pipeline by name."""
        return next((pipeline for pipeline in self.pipelines if pipeline.name == name), None)

    def writers(self, pipeline: str, table: str) -> list[Flow]:
        """Give the flows of a pipeline that write one of its tables."""
        return [
            flow
            for flow in self.flows()
            if flow.pipeline.name == pipeline and flow.declaration.target == table
        ]

    def find(self, name: str) -> Flow:
        """Find a flow by ``pipeline.flow``, or by the flow's own name where only one pipeline has it.

        :raises RequestError: no flow has the name, or several have.
        """
        found = [flow for flow in self.flows() if name in (flow.full_name, flow.name)]
        if len(found) == 1:
            return found[0]
        known = ", ".join(flow.full_name for flow in self.flows()) or "none"
        if found:
            raise RequestError(
                f"{name!r} is the name of {len(found)} flows. Say which:"
                f" {', '.join(flow.full_name for flow in found)}."
            )
        broken = "".join(
            f"\nThis pipeline file cannot be read: {message}" for message in self.errors.values()
        )
        raise RequestError(
            f"There is no flow {name!r}. Declared are: {known}. Correct the name, or declare the"
            f" flow.{broken}"
        )


def files_key(settings: Settings) -> str:
    """Hash the names and bytes of the pipeline files, where they say their data is, which variables they may
    see and find set, and how often a flow or a pipeline was renamed.

    :raises SettingsError: the pipelines folder is not there.
    """
    renamed = names.read(open_storage(settings.state)).number
    seen = f"{settings.data} {settings.pipeline_env} {renamed}"
    digest = hashlib.sha256(f"{FORMAT} {__version__} {seen}".encode())
    for file in pipeline_files.listed(settings.pipelines):
        digest.update(f"\0{file.relative_to(settings.pipelines)}\0".encode(errors="surrogateescape"))
        content = pipeline_files.content(file)
        digest.update(b"unreadable" if content is None else content)
        for name in (variable.decode() for variable in _ASKED_FOR.findall(content or b"")):
            is_set = is_allowed(name, settings.pipeline_env) and bool(os.environ.get(name))
            digest.update(f"\0{is_set}".encode())
    return digest.hexdigest()[:32]


def read_manifest(settings: Settings) -> Manifest:
    """Give the manifest of the pipeline files as they are now; make it anew, in another process, where their
    hash is new.

    Where they cannot be looked at now, all flows are as they were last declared, with the error under
    :data:`FOLDER`: what runs goes on.

    :raises StorageError: the state folder cannot be read.
    :raises StreamkeeperError: the files cannot be looked at, and never could.
    """
    storage = open_storage(settings.state)
    try:
        return _read(storage, _file(files_key(settings))) or make_manifest(settings)
    except StreamkeeperError as error:
        last = _latest(storage)
        if last is None:
            raise
        said = (
            "The pipeline files cannot be looked at, and are tried again; until then all flows keep their"
            f" last declaration. {error}"
        )
        return replace(last, errors={**last.errors, FOLDER: said})


def make_manifest(settings: Settings) -> Manifest:
    """Import every pipeline file in another process, and write the manifest; raises as
    :func:`write_manifest`.
    """
    return write_manifest(settings, lambda files: import_all.import_elsewhere(settings, files))


def write_manifest(
    settings: Settings, imported: Callable[[Sequence[Path]], Iterator[Imported]] | None = None
) -> Manifest:
    """Write the manifest of what comes of importing every pipeline file.

    :param imported: imports files and yields what came of each; by default in this process, which runs user
        code.
    :raises SettingsError: the pipelines folder is not there.
    :raises StorageError: the state folder cannot be written.
    :raises StreamkeeperError: a pipeline file changed while it was read, or the files cannot be imported at
        all.
    """
    storage = open_storage(settings.state)
    key = files_key(settings)
    before = _latest(storage)
    built = _Building(before)
    contents = {file: pipeline_files.content(file) for file in pipeline_files.pipelines(settings.pipelines)}
    declaring = [file for file, content in contents.items() if content is not None and _declares(content)]
    if imported is None:
        with as_user_code_sees_it(settings):
            found = list(import_all.import_here(declaring, settings.data))
    else:
        found = list(imported(declaring))
    results = dict(zip(declaring, found, strict=True))
    for file, content in contents.items():
        if file in results:
            built.add(file, results[file])
        else:
            built.pass_over(file, readable=content is not None)
    if files_key(settings) != key:
        raise _changed_meanwhile(
            key
        )  # else the manifest of one set of files would be found under the hash of another, for ever

    manifest: Manifest = resolve_name(SETTLE)(
        settings, built.finish(key), before, {file.stem for file in contents}
    )
    storage.overwrite(_file(key), to_json(_to_json(manifest)))
    storage.overwrite(_LATEST, to_json({"key": key}))
    return manifest


class _Building:
    """A manifest in the making. ``before`` is the last one: a pipeline file that cannot be read keeps what it
    declared there.
    """

    def __init__(self, before: Manifest | None) -> None:
        self.before = before
        self.pipelines: list[Pipeline] = []
        self.errors: dict[str, str] = {}
        self.fingerprints: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.likenesses: dict[str, str] = {}

    def add(self, file: Path, found: Imported) -> None:
        """Take what came of importing a pipeline file, or note what is wrong with it."""
        if found.left_out is not None:
            self.left_out[file.stem] = found.left_out
            return
        try:
            if found.pipeline is None:
                raise DeclarationError(found.error or f"{file.name} declares nothing.")
            resolve_name(CHECK_SCHEDULES)(
                found.pipeline, Manifest("", (found.pipeline,), {}, found.fingerprints)
            )
        except DeclarationError as error:
            self.errors[file.stem] = str(error)
            self._keep_last(file.stem)
            return
        self.pipelines.append(found.pipeline)
        self.fingerprints |= found.fingerprints
        self.likenesses |= found.likenesses

    def pass_over(self, file: Path, *, readable: bool) -> None:
        """Take a file that declares nothing for a helper module, unless it was a pipeline before: then it was
        perhaps saved half-way.
        """
        if not readable:
            self.errors[file.stem] = (
                f"{file.name}, line 1: the file cannot be read. Check its owner and mode."
            )
        elif self.before is not None and self.before.pipeline(file.stem) is not None:
            self.errors[file.stem] = (
                f"{file.name}, line 1: the file declared flows and does not speak of streamkeeper any more."
                " Until it does, they keep their last declaration. To have them no more, remove the file."
            )
        if file.stem in self.errors:
            self._keep_last(file.stem)

    def finish(self, key: str) -> Manifest:
        """Give the manifest."""
        return Manifest(
            key, tuple(self.pipelines), self.errors, self.fingerprints, self.left_out, self.likenesses
        )

    def _keep_last(self, name: str) -> None:
        last = self.before.pipeline(name) if self.before is not None else None
        if self.before is not None and last is not None:
            self.pipelines.append(last)
            self.fingerprints |= of_pipeline(self.before.fingerprints, name)
            self.likenesses |= of_pipeline(self.before.likenesses, name)


def of_pipeline(marks: dict[str, str], pipeline: str) -> dict[str, str]:
    """Give those of the marks, by full name, that flows of a pipeline have."""
    return {name: mark for name, mark in marks.items() if name.partition(".")[0] == pipeline}


def _changed_meanwhile(key: str) -> StreamkeeperError:
    return StreamkeeperError(
        f"The pipeline files changed while they were read (their hash was {key}). Nothing was written. Run"
        " `streamkeeper check` again."
    )


def _declares(content: bytes) -> bool:
    """Tell a pipeline file from a helper module beside it: only the former speaks of ``streamkeeper``."""
    return b"streamkeeper" in content


def _file(key: str) -> str:
    return f"manifests/{key}.json"


_LATEST = "manifests/latest.json"


def _latest(storage: Storage) -> Manifest | None:
    """Return the manifest that was written last; None where there is none that this release can read."""
    try:
        pointer = read_json(storage, _LATEST) or {}
    except StorageError:
        return None
    return _read(storage, _file(str(pointer.get("key"))))


def _read(storage: Storage, name: str) -> Manifest | None:
    """Return a manifest; None where it is not there, or damaged: it is made of the files, and can be made
    anew.
    """
    content = storage.read(name)
    try:
        return None if content is None else _from_json(json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _to_json(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "key": manifest.key,
        "pipelines": [pipeline_to_json(pipeline) for pipeline in manifest.pipelines],
        "errors": manifest.errors,
        "fingerprints": manifest.fingerprints,
        "left_out": manifest.left_out,
        "likenesses": manifest.likenesses,
    }


def _from_json(value: dict[str, Any]) -> Manifest:
    if value["format"] > FORMAT:
        raise ValueError("it is of a later release")
    pipelines = tuple(pipeline_from_json(item) for item in value["pipelines"])
    return Manifest(
        value["key"],
        pipelines,
        value["errors"],
        value["fingerprints"],
        value.get("left_out", {}),
        value.get("likenesses", {}),
    )
