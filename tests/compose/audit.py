"""Waits until all that was sent is processed, and compares the tables with an oracle that reads the sources.

Runs inside the worker's container, by standard input. Prints what differs; ends with 0 if nothing does.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

from demo import evidence
from demo.data.orders import Sent
from demo.seeing import FlowView, wait
from demo.story import FLOW
from demo.tables import count_rows, read_rows
from streamkeeper.flows.files import open_home
from streamkeeper.settings import Settings

PATIENCE = 900.0


def customers(settings: Settings) -> list[str]:
    view = FlowView(settings, open_home(settings, FLOW), FLOW)
    paths = evidence.present(f"{settings.data}/customers/cdc")
    newest = view.home.generations()[-1]
    wait(f"all {len(paths)} files are processed", view.all_processed(newest, paths), PATIENCE)
    wanted = evidence.expected(paths, evidence.present(f"{settings.data}/customers/snapshot"))
    return evidence.differences(wanted, evidence.actual(view.table))


def orders(settings: Settings) -> list[str]:
    topic, path = Sent(os.environ["ORDERS_BROKERS"]), settings.table_path("orders")
    topic.read()
    sent = set(topic.ids)

    def all_there() -> tuple[bool | None, str]:
        rows = count_rows(path) or 0
        return (True if rows >= len(sent) else None), f"{rows} of {len(sent)} orders"

    wait(f"all {len(sent)} orders are there", all_there, PATIENCE)
    return evidence.differences(Counter(sent), Counter(row["order_id"] for row in read_rows(path)))


def main() -> int:
    settings = Settings.from_environment()
    different = [*customers(settings), *orders(settings)]
    print(
        "\n".join(different) or f"equal; {len(list(Path(settings.data).glob('customers/cdc/*.json')))} files"
    )
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
