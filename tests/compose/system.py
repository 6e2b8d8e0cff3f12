"""The composed system under test, in containers, volumes and networks of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from streamkeeper.settings import PROJECT

STORY_SECONDS = 3600.0
PATIENCE = 1200.0


@dataclass(frozen=True)
class System:
    """The system of one Compose project.

    :param command: Compose's command.
    :param environment: of Docker and of the file's variables.
    :param secrets: the file that ``make .env`` writes.
    """

    command: list[str]
    environment: Mapping[str, str]
    secrets: Path

    def compose(self, *arguments: str, timeout: float = STORY_SECONDS, standard_input: str = "") -> str:
        """Run a command of Compose, and return its output."""
        return self._run(
            [*self.command, "--env-file", str(self.secrets), *arguments], timeout, standard_input
        )

    def inside(self, service: str, *command: str, standard_input: str = "") -> str:
        """Run a command in a service's container, and return its output."""
        return self.compose("exec", "-T", service, *command, standard_input=standard_input)

    def python(self, service: str, program: str, *arguments: str) -> str:
        """Run a program of Python in a service's container, and return its output."""
        return self.inside(service, "python", "-c", program, *arguments)

    def container(self, service: str) -> str:
        """Return the id of a service's container."""
        return self.containers(service)[-1]

    def containers(self, service: str) -> list[str]:
        """Return the ids of all containers of a service."""
        return self.compose("ps", "--quiet", service).strip().splitlines()

    def run(self, *command: str, timeout: float = 120.0) -> str:
        """Run a command beside the containers, and return its output."""
        return self._run([*command], timeout)

    def inspect(self, service: str, what: str) -> str:
        """Return what Docker knows of a service's container, by a template of its own."""
        return self.run("docker", "inspect", "--format", what, self.container(service)).strip()

    def secret(self, name: str) -> str:
        """Return a secret of the file."""
        lines = self.secrets.read_text().splitlines()
        return next(line.partition("=")[2] for line in lines if line.startswith(f"{name}="))

    def kill(self, service: str) -> None:
        """Kill all processes of a service, from inside: ``docker kill`` would count as a stop by hand, after
        which nothing comes again.
        """
        container = self.container(service)
        # Its own end, with that of the container, is no answer.
        subprocess.run(
            ["docker", "exec", container, "sh", "-c", "kill -9 -1"],
            env=dict(self.environment), stdin=subprocess.DEVNULL, capture_output=True, check=False,
        )  # fmt: skip

    def _run(self, command: list[str], timeout: float, standard_input: str = "") -> str:
        done = subprocess.run(
            command, env=dict(self.environment), cwd=PROJECT, input=standard_input, capture_output=True,
            text=True, timeout=timeout, check=False,
        )  # fmt: skip
        said = f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{said}"
        return done.stdout
