"""What all DAGs of Streamkeeper have in common, by the settings."""

from __future__ import annotations

from typing import Any

from streamkeeper.settings import Settings

TAG = "streamkeeper"


def dag_options(settings: Settings, *tags: str, **default_args: Any) -> dict[str, Any]:
    """Return ``tags`` and ``default_args`` of a DAG: its own, and those of ``STREAMKEEPER_DAG_TAGS`` and
    ``STREAMKEEPER_DAG_OWNER``.
    """
    owner = {"owner": settings.dag_owner} if settings.dag_owner else {}
    return {"tags": [TAG, *tags, *settings.dag_tags], "default_args": {**owner, **default_args}}
