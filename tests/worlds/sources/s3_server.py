"""An S3 server with atomic conditional writes, versitygw, built once from its source by Go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamkeeper.jars.folder import LOCK, S3_LOCK, ensure
from streamkeeper.settings import PROJECT
from tests.worlds.servers import Server, go_program, listens
from tools.ports import free_ports

MODULE, VERSION = "github.com/versity/versitygw/cmd/versitygw", "1.8.0"
LOGIN = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testtest", "AWS_DEFAULT_REGION": "us-east-1"}
BUCKET = "streamkeeper-tests"
ASKED = "asked"
"""File beside the bucket in which the server notes each request: ``… s3_PutObject <key> …``."""


def s3_process(folder: Path, port: int) -> Server:
    """Return the server, not started yet, with one empty bucket: a folder of ``folder``."""
    (folder / BUCKET).mkdir(parents=True)
    program = go_program(MODULE, VERSION, "versitygw")
    return Server(
        "the S3 server",
        [program, "--port", f"127.0.0.1:{port}", "--quiet", "--access-log", folder / ASKED, "posix", folder],
        folder / "log",
        listens(port),
        {"ROOT_ACCESS_KEY": LOGIN["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": LOGIN["AWS_SECRET_ACCESS_KEY"]},
    )


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Run the server on a free port until the block ends; gives ``host:port``."""
    (port,) = free_ports(1)
    server = s3_process(folder, port).start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()


def s3_jars() -> Path:
    """Return the folder of the jars with which Spark writes to S3; fetch what is missing."""
    folder = PROJECT / ".cache" / "jars-s3"
    ensure(folder, LOCK, S3_LOCK)
    return folder
