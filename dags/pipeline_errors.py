"""Has no DAG: this file fails to import while a pipeline file cannot be read, or while a DAG of somebody
else's has an id of Streamkeeper's.

So Airflow's list of import errors shows the reason. The flows of that file keep their last declaration, and
all others are not affected (see flows.py).
"""

from __future__ import annotations

from streamkeeper_airflow.dag_files import check_ids, own_ids

from streamkeeper.errors import DeclarationError
from streamkeeper.manifest.manifest import read_manifest
from streamkeeper.settings import Settings

errors = read_manifest(Settings.from_environment()).errors
if errors:
    raise DeclarationError("\n".join(errors.values()))
check_ids(own_ids())
