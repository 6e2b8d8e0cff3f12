"""The pipeline language, as pipeline files import it: ``from streamkeeper import pipelines as dp``."""

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
