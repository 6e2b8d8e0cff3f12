"""Prices that somebody must accept before a plan is carried out."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from streamkeeper.amounts import DOWNSTREAM, LOSS, PRICES
from streamkeeper.recover.plans.plan import Refusal


def price_of_readers(told: Collection[str], accepted: Collection[str]) -> Iterator[Refusal]:
    """Give the price of what :func:`what_readers_feel` told, unless it is accepted: rows go, and come
    again.
    """
    if told and DOWNSTREAM not in accepted:
        said = f"{PRICES[DOWNSTREAM]}: {'; '.join(told)}. To go on all the same, accept `{DOWNSTREAM}`."
        yield Refusal(DOWNSTREAM, said)


def price_of_strangers(
    strangers: Collection[str], version: int, accepted: Collection[str]
) -> Iterator[Refusal]:
    """Give the price of undoing commits of nobody's flow, unless it is accepted.

    :param version: of the table, after which they came.
    """
    if strangers and LOSS not in accepted:
        said = (
            f"commits that no flow of the table made since version {version} are undone, and nothing brings"
            " them back"
        )
        yield Refusal(
            LOSS, f"{PRICES[LOSS]}: {said}: {', '.join(strangers)}. To go on all the same, accept `{LOSS}`."
        )


def price_of_others(others: Collection[str], accepted: Collection[str]) -> Iterator[Refusal]:
    """Give the price of removing what others than a table's flows brought to it or changed in it, unless it
    is accepted.
    """
    if others and LOSS not in accepted:
        said = "what others than the table's flows wrote goes, and no flow brings it again"
        yield Refusal(
            LOSS, f"{PRICES[LOSS]}: {said}: {'; '.join(others)}. To go on all the same, accept `{LOSS}`."
        )
