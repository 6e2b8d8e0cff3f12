"""Import of all pipeline files in a process of its own; a file that ends or hangs it does not affect the
others.

The process gets the files on standard input, and answers with one line of JSON for each, in their order. If
no line comes, the current file has ended the process or takes too long. That file gets an error, and another
process continues with the next.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamkeeper.declare.model import Pipeline, pipeline_from_json, pipeline_to_json
from streamkeeper.errors import DeclarationError, NotOffered, StreamkeeperError
from streamkeeper.manifest import pipeline_files
from streamkeeper.manifest.import_file import blame, fingerprint, likeness, load_pipeline
from streamkeeper.manifest.pipeline_files import as_text
from streamkeeper.redaction import visible
from streamkeeper.settings import PROJECT, Settings
from streamkeeper.support.json_values import parse, read_as
from streamkeeper.support.user_environment import environment

BUILD_SECONDS = 25.0
"""Seconds that the whole import may take; Airflow allows a DAG file 30 s."""
IMPORT_SECONDS, FILE_SECONDS = 20.0, 8.0
"""Seconds that all imports may take together, and one at most."""
MEMORY = 4 * 2**30
"""Bytes that the process may have; beyond that a pipeline file gets a MemoryError."""
OUTPUT, ANSWER = 2**20, 64 * 2**20
"""Bytes of a process' output that are kept, and of one answer. More output is read and dropped."""

_READY = "ready"


@dataclass(frozen=True)
class Imported:
    """Result of importing one pipeline file.

    ``pipeline`` is without its code; ``fingerprints`` and ``likenesses`` are those of its flows by full name.
    Without a pipeline, ``error`` or ``left_out`` holds the reason.
    """

    pipeline: Pipeline | None = None
    fingerprints: dict[str, str] = field(default_factory=dict)
    likenesses: dict[str, str] = field(default_factory=dict)
    error: str | None = None
    left_out: str | None = None


def import_here(files: Iterable[Path], data: str) -> Iterator[Imported]:
    """Import files in this process, one after the other. This runs user code: call it in a process of its
    own.

    :param data: replaces ``{data}`` in paths.
    """
    for file in files:
        yield _import(file, data)


def import_elsewhere(settings: Settings, files: Sequence[Path]) -> Iterator[Imported]:
    """Import files in another process, and yield the result of each, in their order. Their output goes to
    standard error.

    :raises StreamkeeperError: the process cannot be started, or the whole import takes too long.
    """
    end, deadline = (time.monotonic() + seconds for seconds in (BUILD_SECONDS, IMPORT_SECONDS))
    pending = list(files)
    while pending:
        with _Process(settings, pending) as process:
            if process.answer(end - time.monotonic()) != _READY:
                raise _too_long(settings) if time.monotonic() >= end else process.failure()
            first = True
            while pending:
                # Half of what is left, so that however many files hang, each that does not is still imported.
                allowed = min(FILE_SECONDS, max(0.1, (deadline - time.monotonic()) / 2))
                answer = process.answer(min(allowed, end - time.monotonic()))
                imported = _imported(answer, pending[0])
                # In the second half of the time, no error is doubted.
                trusted = first or time.monotonic() > deadline - IMPORT_SECONDS / 2
                if imported is not None and (trusted or imported.error is None):
                    yield imported
                elif time.monotonic() >= end:
                    raise _too_long(settings)
                elif answer is None or first:
                    yield Imported(
                        error=(
                            _late(pending[0], allowed)
                            if answer is None
                            else _ended(pending[0], process.code() if answer is False else None)
                        )
                    )
                    del pending[0]
                    break
                else:
                    # An earlier file may have left a thread that ended the process, or changed what this one
                    # needs, so this one is tried again, as the first of a new process.
                    break
                first = False
                del pending[0]


class _Process:
    """Importing process, as a context. At the end it is killed with all that it started."""

    def __init__(self, settings: Settings, files: Sequence[Path]) -> None:
        self._output = bytearray()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "streamkeeper.manifest.import_all"],
                env=environment(settings),
                # -m imports from here first, so it must never be a folder of the user's.
                cwd=PROJECT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise StreamkeeperError(
                f"No process can be started that imports the pipeline files: {error}. Try again."
            ) from error
        self._answers: queue.Queue[Any] = queue.Queue()
        plain = {"data": settings.data, "files": [str(file) for file in files], "memory": MEMORY}
        threading.Thread(target=self._talk, args=(json.dumps(plain).encode(),), daemon=True).start()
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        sys.stderr.write(visible(self._printed()))

    def answer(self, seconds: float) -> Any:
        """Return the value of the next line; None if none came in time, False if the process ended."""
        try:
            return self._answers.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None

    def code(self) -> int:
        """Return the exit code of the process, which has ended or closed its output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        return self._process.returncode if self._process.returncode is not None else 0

    def failure(self) -> StreamkeeperError:
        """Return the error of a process that ended before it was ready."""
        code = self.code()
        output = self._printed().strip()[-2000:]
        return StreamkeeperError(
            f"The process that imports the pipeline files ended at its start (exit {code}): {output}"
        )

    def _printed(self) -> str:
        """Return what the process printed, once it has ended."""
        # A process of the user's that has left the session may hold the pipe open.
        self._listening.join(timeout=1.0)
        return bytes(self._output).decode(errors="replace")

    def _listen(self) -> None:
        assert self._process.stderr is not None, "it is a pipe"
        with self._process.stderr as output:
            while piece := os.read(output.fileno(), 2**16):
                self._output += piece[: OUTPUT - len(self._output)]

    def _talk(self, request: bytes) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None, "both are pipes"
        with contextlib.suppress(OSError, ValueError):
            with self._process.stdin as to:
                to.write(request)
            with self._process.stdout as answers:
                while line := answers.readline(ANSWER):
                    self._answers.put(parse(line))
        self._answers.put(False)


def _import(file: Path, data: str) -> Imported:
    try:
        pipeline = load_pipeline(file, data)
        # A value that is not JSON or not UTF-8 must fail here, as this file's error.
        plain = json.dumps(pipeline_to_json(pipeline), ensure_ascii=False).encode()
        named = {f"{pipeline.name}.{flow.name}": flow for flow in pipeline.flows}
        return Imported(
            pipeline_from_json(parse(plain)),
            {name: fingerprint(pipeline, flow) for name, flow in named.items()},
            {name: likeness(pipeline, flow) for name, flow in named.items()},
        )
    except NotOffered as error:
        return Imported(left_out=str(error))
    except DeclarationError as error:
        return Imported(error=as_text(str(error)))
    except UnicodeEncodeError as error:
        return Imported(
            error=(
                f"{file.name}, line 1: the file declares a text that cannot be written as UTF-8:"
                f" {error.reason}. Correct it."
            )
        )
    except BaseException as error:  # noqa: BLE001 - whatever a pipeline file raises, the others must still be imported
        return Imported(error=as_text(blame(file, error)))


def _late(file: Path, seconds: float) -> str:
    return (
        f"{as_text(file.name)}, line 1: importing the file took more than {seconds:.0f} s. It must only"
        " declare: move slow work into the functions of views and flows, and run `streamkeeper check`; until"
        " then its flows keep their last declaration."
    )


def _ended(file: Path, code: int | None) -> str:
    """Return the error of a file that ended the process, or that wrote where only answers belong (None)."""
    if code is None:
        how = "it wrote into that process' answers"
    else:
        how = signal.Signals(-code).name if -code in set(signal.Signals) else f"exit code {code}"
    return (
        f"{as_text(file.name)}, line 1: importing the file ended the process that imports it ({how}). It must"
        " only declare: take out what exits or crashes, and run `streamkeeper check`; until then its flows"
        " keep their last declaration."
    )


def _too_long(settings: Settings) -> StreamkeeperError:
    return StreamkeeperError(
        f"Importing the pipeline files in {settings.pipelines} took more than {BUILD_SECONDS} s. They must"
        " only declare: move slow work into the functions of views and flows, and run `streamkeeper check`."
    )


def _to_json(imported: Imported) -> dict[str, Any]:
    return {**vars(imported), "pipeline": pipeline_to_json(imported.pipeline) if imported.pipeline else None}


def _imported(answer: Any, file: Path) -> Imported | None:
    """Return what an answer says of a file; None if nothing: user code can write to the same descriptor."""
    try:
        pipeline = pipeline_from_json(answer["pipeline"]) if answer["pipeline"] else None
        imported = read_as(Imported, {**answer, "pipeline": pipeline})
    except (TypeError, ValueError, KeyError, AttributeError):
        return None
    return imported if pipeline is None or pipeline.name == pipeline_files.name(file) else None


def _serve() -> None:
    """Answer for each file named on standard input."""
    with os.fdopen(os.dup(1), "w") as answers:
        output, request = os.dup(2), json.load(sys.stdin)
        _limit_memory(request["memory"])
        print(json.dumps(_READY), file=answers, flush=True)
        for file in map(Path, request["files"]):
            _open_streams(output)
            print(json.dumps(_to_json(_import(file, request["data"]))), file=answers, flush=True)
    os._exit(0)  # without waiting for threads that a file left behind


def _limit_memory(most: int) -> None:
    """Bound what this process may write to in memory, if it is not bounded already."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _open_streams(output: int) -> None:
    """Point standard output and error at the output of user code: the file before may have closed them."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(output, number)
        setattr(sys, name, os.fdopen(number, "w", 1, errors="backslashreplace", closefd=False))


if __name__ == "__main__":
    _serve()
