"""Packages of the wheel, whose code lies in four folders of the checkout, and the files beside them."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
FOLDERS = {
    "": "plugins",
    "streamkeeper": "streamkeeper",
    "streamkeeper_jobs": "spark_jobs/streamkeeper_jobs",
    "streamkeeper_jobs.run": "spark_jobs",
    "streamkeeper_airflow.dags": "dags",
    "streamkeeper_airflow.dags.recover": "dags/recover",
}
"""Folder of each package that does not lie in its parent's."""
LOCKS = ("jars.lock", "tools/s3.lock", "tools/avro.lock")


class Build(build_py):
    """Adds the locks of the jars, and the jar of Streamkeeper's own classes, to a wheel."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        folder = Path(self.build_lib) / "streamkeeper" / "jars"
        for lock in LOCKS:
            shutil.copy2(ROOT / lock, folder)
        jars = sorted((ROOT / ".cache" / "jars").glob("streamkeeper-jvm-*.jar"))
        if len(jars) != 1:
            raise SystemExit("error: the jar of jvm/ is not built. Run `make wheel`, which builds it first.")
        shutil.copy2(jars[0], folder)


setup(
    package_dir=FOLDERS,
    packages=[
        *find_packages(".", include=["streamkeeper", "streamkeeper.*"]),
        *find_packages("plugins"),
        *find_packages("spark_jobs", include=["streamkeeper_jobs", "streamkeeper_jobs.*"]),
        *[
            name
            for name in FOLDERS
            if name.startswith(("streamkeeper_airflow.dags", "streamkeeper_jobs.run"))
        ],
    ],
    py_modules=["streamkeeper_page"],
    package_data={"streamkeeper.distribution": ["versions.toml"], "streamkeeper_airflow.page": ["static/*"]},
    cmdclass={"build_py": Build},
    options={"egg_info": {"egg_base": "."}},
)
