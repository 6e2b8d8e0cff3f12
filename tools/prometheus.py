"""Keep the Prometheus that the long tests let scrape and judge the metrics.

    python -m tools.prometheus          fill .cache/prometheus, or see that it is complete

It is Debian's package, downloaded and unpacked without being installed; apt checks its signature. Programs
that are on the path already are taken instead.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from streamkeeper.jars.folder import alone
from streamkeeper.settings import PROJECT

FOLDER = PROJECT / ".cache" / "prometheus"
PROGRAMS = ("prometheus", "promtool")


class NoPrometheus(Exception):
    """There is no Prometheus, or it could not be downloaded."""


def program(name: str, folder: Path = FOLDER) -> str:
    """Return the file of one of the programs.

    :raises NoPrometheus: it is not there.
    """
    path = shutil.which(name) or shutil.which(str(folder / "usr" / "bin" / name))
    if path is None:
        raise NoPrometheus(f"There is no {name}. Run `.venv/bin/python -m tools.prometheus`.")
    return path


def ensure(folder: Path = FOLDER) -> bool:
    """Download and unpack Prometheus unless it is there; return whether that was needed.

    The folder takes its place in one move, so one that is there is complete.

    :raises NoPrometheus: with what is missing, and what to do.
    """
    if all(map(shutil.which, PROGRAMS)):
        return False
    with alone(folder):
        if folder.is_dir():
            return False
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=folder.parent) as name:
            # apt drops its rights while it downloads, and must still be able to write there.
            Path(name).chmod(0o777)
            _run(("apt-get", "download", "prometheus"), Path(name))
            [package] = Path(name).glob("prometheus_*.deb")
            _run(("dpkg-deb", "--extract", package.name, "new"), Path(name))
            (Path(name) / "new").rename(folder)
    return True


def _run(command: tuple[str, ...], work: Path) -> None:
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NoPrometheus(
            f"There is no {command[0]}: this is no Debian. Install Prometheus, with promtool, on the path."
        ) from error
    if done.returncode:
        raise NoPrometheus(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.strip()[-2000:]}\n"
            "Is there a network? Run `apt-get update` as root, or install Prometheus, and run the same"
            " command again: nothing is left half done."
        )


def main() -> int:
    """Run the command line described at the top of this module; return 0, or 1 with what is wrong."""
    try:
        if ensure():
            print(f"Prometheus downloaded into {FOLDER}")
    except NoPrometheus as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
