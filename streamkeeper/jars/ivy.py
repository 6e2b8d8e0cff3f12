"""Download jars with the Ivy that pip's pyspark brings along: no Maven and no Spark start are needed.

Ivy looks in Maven Central, which it knows by itself. STREAMKEEPER_IVY_SETTINGS may name an ivysettings.xml
that looks elsewhere.
"""

import os
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from streamkeeper.errors import StreamkeeperError
from streamkeeper.jars.java import find_java
from streamkeeper.settings import CHECKOUT

SETTINGS_VARIABLE = "STREAMKEEPER_IVY_SETTINGS"
_TIMEOUT_SECONDS = 900
# Without poms Ivy asks for the jars alone: right for a lock, which names every jar.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="{poms}" useMavenMetadata="false"
      checksums="{checksums}"{root}/>
  </resolvers>
</ivysettings>
"""


class IvyError(StreamkeeperError):
    """Ivy could not get every jar; the message says which, and what to do."""


@dataclass(frozen=True, order=True)
class Module:
    """One jar in a Maven repository."""

    group: str
    artifact: str
    version: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @staticmethod
    def parse(text: str) -> "Module":
        """Read `group:artifact:version`; raises ValueError for anything else."""
        parts = text.split(":")
        if len(parts) != 3 or not all(parts):
            raise ValueError(f"{text!r} is not a jar's name; it has the form group:artifact:version")
        return Module(*parts)


def pyspark_jars() -> Path:
    """Return the folder of the installed pyspark's jars; raises IvyError if there is none."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        way = "Run `make setup`, and use .venv/bin/python" if CHECKOUT else "Install pyspark"
        raise IvyError(f"pyspark is not installed in this Python. {way}.")
    return Path(spec.origin).parent / "jars"


def download(modules: list[Module], folder: Path, mirror: str | None = None) -> None:
    """Put exactly these jars, without what they depend on, into `folder` as artifact-version.jar.

    `mirror` is the URL of a Maven repository that is asked instead of Maven Central.
    """
    pattern = "[artifact]-[revision].[ext]"
    _run(modules, folder, pattern=pattern, transitive=False, exclude=(), mirror=mirror)


def resolve(roots: list[Module], folder: Path, exclude: tuple[str, ...] = ()) -> list[Module]:
    """Put these jars and all that they need at run time into `folder`, and return what came, sorted.

    `exclude` names `group:artifact` that are left out wherever they are asked for by another jar.
    """
    _run(
        roots, folder, pattern="[organisation]@[artifact]@[revision].[ext]", transitive=True, exclude=exclude
    )
    came = []
    for path in folder.glob("*.jar"):
        module = Module(*path.name.removesuffix(".jar").split("@"))
        path.rename(folder / module.file_name)
        came.append(module)
    return sorted(came)


def _run(
    modules: list[Module],
    folder: Path,
    *,
    pattern: str,
    transitive: bool,
    exclude: tuple[str, ...],
    mirror: str | None = None,
) -> None:
    java = find_java()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ivy-", dir=folder.parent) as name:
        work = Path(name)
        (work / "ivy.xml").write_text(_ivy_file(modules, transitive, exclude))
        settings = os.environ.get(SETTINGS_VARIABLE)
        if mirror or not settings:
            root = f" root={quoteattr(mirror)}" if mirror else ""
            settings = str(work / "settings.xml")
            checksums = "sha1" if transitive else ""
            text = _SETTINGS.format(poms=str(transitive).lower(), checksums=checksums, root=root)
            Path(settings).write_text(text)
        command = [
            *(
                str(java),
                f"-Divy.default.ivy.user.dir={work / 'user'}",
                "-cp",
                f"{pyspark_jars()}/*",
                "org.apache.ivy.Main",
            ),
            *("-settings", settings, "-ivy", str(work / "ivy.xml"), "-cache", str(work / "cache")),
            *("-confs", "default", "-retrieve", f"{folder}/{pattern}"),
        ]
        code, output = _call(command)
    missing = (
        [] if transitive else [module for module in modules if not (folder / module.file_name).is_file()]
    )
    if code != 0 or missing or not any(folder.glob("*.jar")):
        raise IvyError(_explain(modules, missing, output))


def _call(command: list[str]) -> tuple[int, str]:
    pipe = subprocess.PIPE
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"error: stopped after {_TIMEOUT_SECONDS} seconds"
    return answer.returncode, answer.stdout


def _ivy_file(modules: list[Module], transitive: bool, exclude: tuple[str, ...]) -> str:
    conf = "default->master,runtime" if transitive else "default->default"
    dependencies = "\n".join(
        f"    <dependency org={quoteattr(m.group)} name={quoteattr(m.artifact)} rev={quoteattr(m.version)}"
        f' conf="{conf}" transitive="{str(transitive).lower()}"/>'
        for m in modules
    )
    pairs = [name.split(":") for name in exclude]
    exclusions = "\n".join(
        f"    <exclude org={quoteattr(group)} module={quoteattr(artifact)}/>" for group, artifact in pairs
    )
    return f"""<ivy-module version="2.0">
  <info organisation="streamkeeper" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
{exclusions}
  </dependencies>
</ivy-module>
"""


def _explain(modules: list[Module], missing: list[Module], output: str) -> str:
    failed = missing or modules
    signs = ("unresolved", "not found", "exception", "error", "failed", "refused", "timed out")
    error_lines = [
        line.strip() for line in output.splitlines() if any(sign in line.lower() for sign in signs)
    ]
    return "\n".join(
        [
            f"{len(failed)} of {len(modules)} jars could not be downloaded from the Maven repository:"
            f" {', '.join(map(str, failed[:3]))}" + (" …" if len(failed) > 3 else "."),
            *(f"  ivy: {line}" for line in error_lines[:8]),
            (
                "Is there a network? Behind a proxy set JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=…"
                " -Dhttps.proxyPort=…'; for a mirror write an ivysettings.xml and name it in"
                f" {SETTINGS_VARIABLE}, or give its URL to `streamkeeper jars --mirror`."
                " Then run the same command again: nothing is left half done."
            ),
        ]
    )
