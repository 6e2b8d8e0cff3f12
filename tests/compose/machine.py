"""Docker for the tests: the daemon that is there or one of their own, and a base image even where no registry
is reached.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.waiting import NotYet, wait_until

BASE = "debian:12-slim"
OWN_BASE = "streamkeeper-tests-base:12"
AUTHORITIES = Path("/usr/local/share/ca-certificates")
MIRROR = "http://deb.debian.org/debian"


class LacksDocker(Exception):
    """This machine cannot run the test; the message says what to install."""


@contextmanager
def docker() -> Iterator[dict[str, str]]:
    """Give the environment of a Docker daemon that answers: the one that the environment names, or one that
    lives as long as the block.

    :raises LacksDocker: there is none, and none can be started.
    """
    if _answers(dict(os.environ)):
        yield dict(os.environ)
        return
    if os.geteuid() != 0 or not shutil.which("dockerd"):
        raise LacksDocker(
            "No Docker daemon answers, and none can be started: that takes root and dockerd. Start one, or"
            " install it (Debian: apt-get install docker.io docker-compose debootstrap) and run as root."
        )
    # Not below /tmp of a container: layers are overlays, which do not stack everywhere.
    with tempfile.TemporaryDirectory(prefix="streamkeeper-docker-", dir="/var/tmp") as name:
        folder = Path(name)
        # No BuildKit: Debian's docker.io has no buildx.
        environment = {**os.environ, "DOCKER_HOST": f"unix://{folder}/sock", "DOCKER_BUILDKIT": "0"}
        places = ["--data-root", folder / "data", "--exec-root", folder / "exec", "-p", folder / "pid"]
        command = ["dockerd", *places, "-H", environment["DOCKER_HOST"]]
        with (folder / "log").open("wb") as log:
            daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_until(lambda: _runs(daemon, environment, folder / "log"), 120, "dockerd answers")
            yield environment
        finally:
            _remove_all(environment)
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(60)


def base_image(environment: dict[str, str]) -> str:
    """Return the name of a base image: Debian's from its registry, or one made from Debian's packages.

    :raises LacksDocker: neither is to be had.
    """
    for name in (OWN_BASE, BASE):
        if not _call(environment, "docker", "image", "inspect", name).returncode:
            return name
    if not _call(environment, "docker", "pull", "--quiet", BASE).returncode:
        return BASE
    if not shutil.which("debootstrap"):
        raise LacksDocker(
            f"{BASE} cannot be pulled, and there is no debootstrap to make it. Install debootstrap."
        )
    with tempfile.TemporaryDirectory(prefix="streamkeeper-base-", dir="/var/tmp") as name:
        made = _call(
            environment,
            "debootstrap",
            "--variant=minbase",
            "--include=ca-certificates",
            "bookworm",
            name,
            MIRROR,
        )
        if made.returncode:
            raise LacksDocker(f"debootstrap could not make {OWN_BASE}:\n{made.stdout[-2000:]}")
        # This machine's own authorities, behind which its registries may lie.
        for file in AUTHORITIES.glob("*.crt"):
            shutil.copy(file, Path(name) / "usr/local/share/ca-certificates")
        _checked(environment, "chroot", name, "update-ca-certificates")
        _checked(environment, "sh", "-c", f"tar -C {name} -c . | docker import - {OWN_BASE}")
    return OWN_BASE


def compose() -> list[str]:
    """Return the command of Compose: the plugin, or the program of its own.

    :raises LacksDocker: there is neither.
    """
    for command in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(command[0])
            and not subprocess.run([*command, "version"], capture_output=True, check=False).returncode
        ):
            return command
    raise LacksDocker("There is no docker compose. Install it (Debian: apt-get install docker-compose).")


def _runs(daemon: subprocess.Popen[bytes], environment: dict[str, str], log: Path) -> bool:
    if daemon.poll() is not None:
        raise LacksDocker(f"dockerd ended with exit code {daemon.returncode}:\n{log.read_text()[-3000:]}")
    if not _answers(environment):
        raise NotYet(log.read_text()[-300:])
    return True


def _answers(environment: dict[str, str]) -> bool:
    return bool(shutil.which("docker")) and not _call(environment, "docker", "info").returncode


def _remove_all(environment: dict[str, str]) -> None:
    """Remove the containers of a daemon of the tests' own: they would outlive it."""
    found = _call(environment, "docker", "ps", "--all", "--quiet").stdout.split()
    if found:
        _call(environment, "docker", "rm", "--force", *found)


def _checked(environment: dict[str, str], *command: str) -> None:
    answer = _call(environment, *command)
    assert answer.returncode == 0, f"{' '.join(command)}:\n{answer.stdout[-3000:]}"


def _call(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
