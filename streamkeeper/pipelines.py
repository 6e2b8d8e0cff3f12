"""The pipeline language, as pipeline files import it: ``from streamkeeper import pipelines as dp``."""

from __future__ import annotations

from typing import Any

from streamkeeper.declare import language
from streamkeeper.declare.language import (
    append_flow,
    configure_pipeline,
    create_auto_cdc_flow,
    create_source,
    create_streaming_table,
    notifier,
    only_where_set,
    schedule,
    temporary_view,
)

__all__ = [
    "append_flow",
    "configure_pipeline",
    "create_auto_cdc_flow",
    "create_source",
    "create_streaming_table",
    "notifier",
    "only_where_set",
    "schedule",
    "temporary_view",
]


def __getattr__(name: str) -> Any:
    """Raise the error for a part of Lakeflow's language that is not offered here; it names the
    alternative.
    """
    return getattr(language, name)
