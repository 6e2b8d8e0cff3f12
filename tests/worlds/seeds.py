"""Seeds of the property tests that run real batches: new ones in each run, and shown at its end."""

from __future__ import annotations

import os
from random import SystemRandom

RUNS = range(int(os.environ.get("STREAMKEEPER_EXAMPLES", "12")))
"""How often a property is tried, shared out among its cases."""


def next_seed() -> int:
    """Return a new seed, or the one of ``STREAMKEEPER_SEED``."""
    given = os.environ.get("STREAMKEEPER_SEED")
    return int(given) if given else SystemRandom().randrange(2**32)
