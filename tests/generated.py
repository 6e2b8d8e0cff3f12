"""How the property tests that run real batches are generated: each batch costs seconds, so that examples are
few and none is shrunk.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

EXAMPLES = int(os.environ.get("STREAMKEEPER_EXAMPLES", "1"))
"""How many a property is tried with."""
GENERATED = settings(
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    max_examples=EXAMPLES,
    suppress_health_check=list(HealthCheck),
)
