"""Streamkeeper's DAGs as a bundle, for ``[dag_processor] dag_bundle_config_list``::

{"name": "streamkeeper", "classpath": "streamkeeper_airflow.bundle.StreamkeeperBundle", "kwargs": {}}
"""

from __future__ import annotations

from typing import Any

from airflow.dag_processing.bundles.local import LocalDagBundle

from streamkeeper_airflow.dag_files import FOLDER


class StreamkeeperBundle(LocalDagBundle):
    """The folder of the installed DAG files. It has no versions: a flow's run, which lasts for months, must
    not keep the code that it began with.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "path": str(FOLDER)})
