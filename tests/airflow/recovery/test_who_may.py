"""Guarding a recovery's DAG: what its file gives to Airflow's auth manager arrives there."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamkeeper_airflow.recovery.dag import recovery_dag

from streamkeeper.recover.plans.kind import KINDS


@pytest.mark.parametrize("name", KINDS)
def test_a_recovery_s_dag_names_the_roles_that_may_trigger_it(name: str, project: Path) -> None:
    granted = {"table owners": {"DAGs": {"can_read", "can_edit"}, "DAG Runs": {"can_create", "can_read"}}}
    assert project.is_dir()
    assert recovery_dag(name).access_control is None
    assert recovery_dag(name, access_control=granted).access_control == granted
