"""All DAGs of Streamkeeper, for a file of one's own or as a bundle; both from the same files.

A file of three lines in the DAGs folder::

    from streamkeeper_airflow import all_dags

    globals().update(all_dags())
"""

from __future__ import annotations

import json
import logging
import runpy
from collections.abc import Collection
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, conf, get_parsing_context

from streamkeeper.errors import SettingsError
from streamkeeper.install.job_scan import definitions
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import CHECKOUT, PROJECT, Settings, dag_id, dag_name

FOLDER = PROJECT / "dags" if CHECKOUT else Path(__file__).parent / "dags"
"""Folder of the DAG files."""
ERRORS = "pipeline_errors.py"
"""File that fails to import while a pipeline file cannot be read, so that Airflow shows the reason."""
BUNDLE = "streamkeeper_airflow.bundle.StreamkeeperBundle"

log = logging.getLogger(__name__)


def all_dags() -> dict[str, DAG]:
    """Return every DAG by its id. Where Airflow runs a task, only the DAGs of one file are made.

    Pipeline files that cannot be read are logged; their flows keep their last declaration.

    :raises SettingsError: a setting is missing or wrong, the bundle gives the same DAGs to this Airflow,
        two DAGs have one id, or a DAG of somebody else's has one of these ids.
    """
    _check_single()
    for message in read_manifest(Settings.from_environment()).errors.values():
        log.error("%s", message)
    task_of = get_parsing_context().dag_id
    made: dict[str, DAG] = {}
    for file in _files(task_of):
        dags = [value for value in runpy.run_path(str(file)).values() if isinstance(value, DAG)]
        for dag in {id(dag): dag for dag in dags}.values():
            if dag.dag_id in made:
                raise SettingsError(
                    f"Two of Streamkeeper's DAGs have the id {dag.dag_id!r}. Rename the flow or the pipeline"
                    " that it is made of, or set STREAMKEEPER_DAG_PREFIX to another prefix."
                )
            made[dag.dag_id] = dag
        if task_of in made:
            break
    if task_of is None:
        check_ids(made)
    return made


def check_ids(ids: Collection[str]) -> None:
    """Check that no DAG of somebody else's has one of Streamkeeper's ids, as far as the text of Airflow's
    local DAG folders tells: of two DAGs with one id, Airflow would run the tasks of either.

    :raises SettingsError: one has; the message says where it is.
    """
    for folder in _local_folders():
        for used, place in sorted(definitions(folder, ids).items()):
            way_out = (
                "Rename that DAG, or the flow."
                if dag_name(used) == used
                else "Rename that DAG, or set STREAMKEEPER_DAG_PREFIX to another prefix everywhere."
            )
            raise SettingsError(
                f"{place} defines a DAG with the id {used!r}, which one of Streamkeeper's has. Airflow would"
                f" run the tasks of either. {way_out}"
            )


def own_ids() -> set[str]:
    """Return the ids of the DAGs in :data:`FOLDER`, without those of schedules."""
    names = {name for file in _files(None) for name in (file.stem, f"{file.stem}_daily")}
    flows = read_manifest(Settings.from_environment()).flows()
    return {*map(dag_id, names), *(flow.dag_id for flow in flows)}


def _local_folders() -> list[Path]:
    """Return the folders of other people's DAG files on this host."""
    usual = conf.get("core", "dags_folder")
    places = [
        (bundle.get("kwargs") or {}).get("path") or usual
        for bundle in _bundles()
        if str(bundle.get("classpath")).endswith(".LocalDagBundle")
    ]
    folders = (Path(place).resolve() for place in places or [usual])
    return [folder for folder in folders if folder.is_dir() and not FOLDER.is_relative_to(folder)]


def _bundles() -> list[dict[str, Any]]:
    bundles: list[dict[str, Any]] = json.loads(
        conf.get("dag_processor", "dag_bundle_config_list", fallback="[]") or "[]"
    )
    return bundles


def _files(task_of: str | None) -> list[Path]:
    """Return the DAG files, first the one that has a DAG if its name tells so."""
    files = [file for file in sorted(FOLDER.rglob("*.py")) if file.name not in (ERRORS, "__init__.py")]
    name = dag_name(task_of or "")
    return sorted(files, key=lambda file: (file.stem != name, file.stem != "flows"))


def _check_single() -> None:
    twice = [bundle.get("name") for bundle in _bundles() if bundle.get("classpath") == BUNDLE]
    if twice:
        raise SettingsError(
            f"The bundle {twice[0]!r} of Airflow's [dag_processor] dag_bundle_config_list gives all of"
            " Streamkeeper's DAGs, and this file, by all_dags(), the same again. Delete this file, or take"
            " the bundle out of the list."
        )
