"""What all DAGs of Streamkeeper have in common, by the settings."""

from __future__ import annotations

from typing import Any

from streamkeeper.settings import Settings

TAG = "streamkeeper"


def dag_options(settings: Settings, *tags: str, **default_args: Any) -> dict[str, Any]:
    """Return ``tags`` and ``default_args`` of a DAG: its own, and those of the settings ``dag_…``."""
    chosen = {"owner": settings.dag_owner, "queue": settings.dag_queue}
    shared = {name: value for name, value in chosen.items() if value}
    return {
        "tags": [TAG, *tags, *settings.dag_tags],
        "default_args": {**shared, "priority_weight": settings.dag_priority, **default_args},
    }
