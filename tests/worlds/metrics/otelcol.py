"""OpenTelemetry's Collector with its OTLP receiver, built once from its source by Go."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from streamkeeper.settings import PROJECT
from tools.waiting import wait_until

VERSION = "0.165.0"
_PARTS = {
    "receivers": [{"gomod": f"go.opentelemetry.io/collector/receiver/otlpreceiver v{VERSION}"}],
    "exporters": [{"gomod": f"go.opentelemetry.io/collector/exporter/debugexporter v{VERSION}"}],
}


def binary() -> Path:
    """Return the collector's program; build it if it is not there, which takes minutes."""
    folder = PROJECT / ".cache" / f"otelcol-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "otelcol"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            assert shutil.which("go"), "Go builds the collector of these tests: install Go 1.26"
            with tempfile.TemporaryDirectory(dir=folder) as made:
                build = Path(made) / "build.yaml"
                dist = {"name": "otelcol", "output_path": f"{made}/out", "version": VERSION}
                build.write_text(yaml.safe_dump({"dist": dist, **_PARTS}))
                tool = f"go.opentelemetry.io/collector/cmd/builder@v{VERSION}"
                subprocess.run(
                    ["go", "run", tool, "--config", str(build)],
                    env={**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "auto"},
                    check=True,
                )
                (Path(made) / "out" / "otelcol").rename(program)
    return program


@contextmanager
def otelcol(folder: Path) -> Iterator[tuple[str, Path]]:
    """Run the collector on a free port; yield its URL, and the file in which it writes what it took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "collector.yaml"
    config.write_text(
        json.dumps(
            {
                "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
                "exporters": {"debug": {"verbosity": "detailed"}},
                "service": {
                    "pipelines": {"metrics": {"receivers": ["otlp"], "exporters": ["debug"]}},
                    "telemetry": {"metrics": {"level": "none"}},
                },
            }
        )
    )
    said = folder / "collector.log"
    with said.open("w") as log:
        process = subprocess.Popen([binary(), f"--config={config}"], stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: "Everything is ready" in said.read_text() or None, 60, "the collector runs")
            yield f"http://127.0.0.1:{port}", said
        finally:
            process.terminate()
            process.wait(30)
