"""The pipeline language, as pipeline files import it: ``from streamkeeper import pipelines as dp``."""

from __future__ import annotations

from typing import Any

from streamkeeper.declare import language
from streamkeeper.declare.language import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Raise the error for a part of Lakeflow's language that is not offered; it names the alternative."""
    return getattr(language, name)
