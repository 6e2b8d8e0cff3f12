"""The prices that a plan may have, by the word that accepts each: ``accept`` of a request, ``--accept`` of a
command.
"""

from __future__ import annotations

LOSS = "loss"
REPEATS = "repeats"
MISSING_HISTORY = "missing-history"
UNKNOWN_PRICE = "unknown-price"
DOWNSTREAM = "downstream"

PRICES = {
    LOSS: "rows that no generation will ever read",
    REPEATS: "rows that the target will get a second time",
    MISSING_HISTORY: (
        "a rebuilt state without rows of the history that are gone, or in files that were written anew"
    ),
    UNKNOWN_PRICE: "a price that could not be found out",
    DOWNSTREAM: "streams that read the table feel that its rows go and are written again",
}
