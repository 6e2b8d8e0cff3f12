"""The manifest: what all pipeline files declare, as JSON. DAGs, forms and pages read it and never import user
code.

It is written by ``streamkeeper check`` in a process of its own, and lies at ``{state}/manifests/<hash of the
pipeline files>.json``. A pipeline file that raises costs nobody else's flows: its own are kept as they were
last declared, with the error beside them.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamkeeper import __version__
from streamkeeper.declare.model import AnyFlow, Pipeline, pipeline_from_json, pipeline_to_json, without_code
from streamkeeper.errors import DeclarationError, NotOffered, RequestError, SettingsError, StreamkeeperError
from streamkeeper.manifest.import_file import fingerprint, load_pipeline
from streamkeeper.recover.plans.schedules import check_schedules
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.storage import Storage, open_storage, read_json, to_json

FORMAT = 4
BUILD_SECONDS = 25
"""How long the process that imports the pipeline files may take; Airflow gives a DAG file 30 s to import."""
IMPORT_SECONDS, FILE_SECONDS = 20.0, 8.0
"""How long all imports in it may take together, and one at most: a file that hangs takes down nothing but its
own flows.
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
    environment to the reason.
    """

    key: str
    pipelines: tuple[Pipeline, ...]
    errors: dict[str, str]
    fingerprints: dict[str, str]
    left_out: dict[str, str] = field(default_factory=dict)

    def flows(self) -> Iterator[Flow]:
        """Give every flow, pipeline by pipeline."""
        for pipeline in self.pipelines:
            for flow in pipeline.flows:
                yield Flow(pipeline, flow, self.fingerprints[f"{pipeline.name}.{flow.name}"])

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
    """Hash the names and bytes of the pipeline files, where they say their data is, and whether what some of
    them ask for is set.

    :raises SettingsError: the pipelines folder is not there.
    """
    digest = hashlib.sha256(f"{FORMAT} {__version__} {settings.data}".encode())
    for file in _python_files(settings):
        digest.update(f"\0{file.relative_to(settings.pipelines)}\0".encode())
        content = file.read_bytes()
        digest.update(content)
        for variable in _ASKED_FOR.findall(content):
            digest.update(f"\0{bool(os.environ.get(variable.decode()))}".encode())
    return digest.hexdigest()[:32]


def read_manifest(settings: Settings) -> Manifest:
    """Give the manifest of the pipeline files as they are now; make it anew, in another process, where their
    hash is new.

    :raises StreamkeeperError: the process failed or took too long.
    """
    key = files_key(settings)
    found = read_json(open_storage(settings.state), _file(key))
    if found is None:
        _build_elsewhere(settings)
        found = read_json(open_storage(settings.state), _file(key))
        if found is None:
            raise _changed_meanwhile(key)
    return _from_json(found)


def write_manifest(settings: Settings) -> Manifest:
    """Import every pipeline file and write the manifest. This runs user code: call it in a process made for
    it.

    :raises SettingsError: the pipelines folder is not there.
    :raises StorageError: the state folder cannot be written.
    :raises StreamkeeperError: a pipeline file changed while it was read.
    """
    storage = open_storage(settings.state)
    key = files_key(settings)
    built = _Building(_latest(storage))
    for file in sorted(settings.pipelines.glob("*.py")):
        if file.name.startswith("_"):
            continue
        if _declares(file):
            built.add(file, settings.data)
        else:
            built.pass_over(file)
    if files_key(settings) != key:
        raise _changed_meanwhile(
            key
        )  # else the manifest of one set of files would be found under the hash of another, for ever
    manifest = built.finish(key)
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
        self._deadline = time.monotonic() + IMPORT_SECONDS

    def add(self, file: Path, data: str) -> None:
        """Import a pipeline file, or note what is wrong with it."""
        # Half of what is left, so that however many files hang, each that does not is still read.
        allowed = min(FILE_SECONDS, max(0.1, (self._deadline - time.monotonic()) / 2))
        try:
            with _interrupted_after(allowed, file):
                pipeline = load_pipeline(file, data)
            self._check_targets(pipeline)
            plain = without_code(pipeline)
            fingerprints = {
                f"{pipeline.name}.{flow.name}": fingerprint(pipeline, flow) for flow in pipeline.flows
            }
            check_schedules(plain, Manifest("", (plain,), {}, fingerprints))
        except NotOffered as error:
            self.left_out[file.stem] = str(error)
            return
        except DeclarationError as error:
            self.errors[file.stem] = str(error)
            self._keep_last(file.stem)
            return
        self.pipelines.append(plain)
        self.fingerprints |= fingerprints

    def pass_over(self, file: Path) -> None:
        """Take a file that declares nothing for a helper module, unless it was a pipeline before: then it was
        perhaps saved half-way.
        """
        if self.before is not None and any(last.name == file.stem for last in self.before.pipelines):
            self.errors[file.stem] = (
                f"{file.name}, line 1: the file declared flows and does not speak of streamkeeper any more."
                " Until it does, they keep their last declaration. To have them no more, remove the file."
            )
            self._keep_last(file.stem)

    def finish(self, key: str) -> Manifest:
        """Give the manifest."""
        return Manifest(key, tuple(self.pipelines), self.errors, self.fingerprints, self.left_out)

    def _keep_last(self, name: str) -> None:
        if self.before is None:
            return
        for last in self.before.pipelines:
            if last.name == name:
                self.pipelines.append(last)
                names = [f"{name}.{flow.name}" for flow in last.flows]
                self.fingerprints |= {full_name: self.before.fingerprints[full_name] for full_name in names}

    def _check_targets(self, pipeline: Pipeline) -> None:
        """Refuse a table that another pipeline has: recoveries lock a table within its pipeline.

        :raises DeclarationError: another pipeline has it, and keeps it.
        """
        for table in pipeline.tables:
            for other in self.pipelines:
                taken = other.table(table.name)
                if taken is not None:
                    raise DeclarationError(
                        f"{table.where}: the table {table.name} belongs to the pipeline {other.name} already"
                        f" ({taken.where}). A table belongs to one pipeline: declare its flows in one file,"
                        " or give this table another name."
                    )


class _TakesTooLong(BaseException):
    """Ends an import; no ``except Exception`` of a pipeline file stops it."""


@contextmanager
def _interrupted_after(seconds: float, file: Path) -> Iterator[None]:
    """End what runs inside after that long. Signals reach the main thread alone: elsewhere only the whole
    process has a limit.

    :raises DeclarationError: it was ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: object) -> None:
        raise _TakesTooLong

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _TakesTooLong as error:
        raise DeclarationError(
            f"{file.name}, line 1: importing the file took more than {seconds:.0f} s. It must only declare:"
            " move slow work into the functions of views and flows, and run `streamkeeper check`; until then"
            " its flows keep their last declaration."
        ) from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _changed_meanwhile(key: str) -> StreamkeeperError:
    return StreamkeeperError(
        f"The pipeline files changed while they were read (their hash was {key}). Nothing was written. Run"
        " `streamkeeper check` again."
    )


def _build_elsewhere(settings: Settings) -> None:
    command = [sys.executable, "-m", "streamkeeper.manifest.manifest"]
    environment = {**os.environ, **settings.as_environment()}
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=PROJECT,  # the first place that -m imports from: never a folder of the user's
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise StreamkeeperError(
            f"Importing the pipeline files in {settings.pipelines} took more than {BUILD_SECONDS} s. They"
            " must only declare: move slow work into the functions of views and flows, and run `streamkeeper"
            " check`."
        ) from error
    if done.returncode:
        raise StreamkeeperError(
            f"The manifest could not be made (exit {done.returncode}): {done.stderr.strip()[-2000:]}"
        )


def _python_files(settings: Settings) -> list[Path]:
    if not settings.pipelines.is_dir():
        raise SettingsError(
            f"The pipelines folder {settings.pipelines} is not there. Make it, or set STREAMKEEPER_PIPELINES"
            " to the right one."
        )
    return sorted(file for file in settings.pipelines.rglob("*.py") if "__pycache__" not in file.parts)


def _declares(file: Path) -> bool:
    """Tell a pipeline file from a helper module beside it: only the former speaks of ``streamkeeper``."""
    return b"streamkeeper" in file.read_bytes()


def _file(key: str) -> str:
    return f"manifests/{key}.json"


_LATEST = "manifests/latest.json"


def _latest(storage: Storage) -> Manifest | None:
    pointer = read_json(storage, _LATEST)
    found = read_json(storage, _file(pointer["key"])) if pointer else None
    return _from_json(found) if found and found["format"] <= FORMAT else None


def _to_json(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "key": manifest.key,
        "pipelines": [pipeline_to_json(pipeline) for pipeline in manifest.pipelines],
        "errors": manifest.errors,
        "fingerprints": manifest.fingerprints,
        "left_out": manifest.left_out,
    }


def _from_json(value: dict[str, Any]) -> Manifest:
    pipelines = tuple(pipeline_from_json(item) for item in value["pipelines"])
    return Manifest(
        value["key"], pipelines, value["errors"], value["fingerprints"], value.get("left_out", {})
    )


if __name__ == "__main__":
    try:
        write_manifest(Settings.from_environment())
    except StreamkeeperError as error:
        sys.exit(str(error))
