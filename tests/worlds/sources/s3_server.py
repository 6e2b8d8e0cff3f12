"""An S3 server with atomic conditional writes, versitygw, built once from its source by Go."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamkeeper.settings import PROJECT
from tools.jars import LOCK, S3_LOCK, ensure
from tools.waiting import wait_until

VERSION = "1.8.0"
LOGIN = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testtest", "AWS_DEFAULT_REGION": "us-east-1"}
BUCKET = "streamkeeper-tests"


def binary() -> Path:
    """Return the server's program; build it if it is not there."""
    folder = PROJECT / ".cache" / f"versitygw-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "versitygw"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            assert shutil.which("go"), "Go builds the S3 server of these tests: install Go 1.26"
            with tempfile.TemporaryDirectory(dir=folder) as made:
                subprocess.run(
                    ["go", "install", "-trimpath", f"github.com/versity/versitygw/cmd/versitygw@v{VERSION}"],
                    env={**os.environ, "GOBIN": made, "CGO_ENABLED": "0", "GOTOOLCHAIN": "auto"},
                    check=True,
                )
                (Path(made) / "versitygw").rename(program)
    return program


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Run the server on a free port, with one empty bucket; gives ``host:port``."""
    (folder / BUCKET).mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    login = {"ROOT_ACCESS_KEY": LOGIN["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": LOGIN["AWS_SECRET_ACCESS_KEY"]}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [binary(), "--port", f"127.0.0.1:{port}", "--quiet", "posix", folder],
            env={**os.environ, **login},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(lambda: _answers(port), 60, "the S3 server answers", 0.1)
            yield f"127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()


def _answers(port: int) -> bool | None:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0 or None


def s3_jars() -> Path:
    """Return the folder of the jars with which Spark writes to S3; fetch what is missing."""
    folder = PROJECT / ".cache" / "jars-s3"
    ensure(folder, LOCK, S3_LOCK)
    return folder
