"""Carry out one step of a recovery that needs Spark: ``spark-submit run_recovery.py --pipeline P --recovery
ID --step S``.

The plan is in the ledger, where the step's progress, end and evidence go too; settings come from the
environment. A step that is done is found done. Exit code 0; 1 if the step could not be done (the ledger says
why); 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import logging
import sys

from streamkeeper_jobs.steps import carry_out

from streamkeeper.errors import StreamkeeperError, UsageError
from streamkeeper.exit_codes import Outcome
from streamkeeper.settings import Settings


def main() -> int:
    """Read the command line and carry out the step; give the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pipeline", required=True, help="the pipeline that the recovery is of")
    parser.add_argument(
        "--recovery", required=True, metavar="ID", help="the recovery, as its ledger is named"
    )
    parser.add_argument("--step", required=True, help="the step to carry out")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        evidence = carry_out(
            Settings.from_environment(), arguments.pipeline, arguments.recovery, arguments.step
        )
    except UsageError as error:
        print(error, file=sys.stderr)
        return int(Outcome.USAGE)
    except StreamkeeperError as error:
        print(error, file=sys.stderr)
        return int(Outcome.FAILED)
    print(f"{arguments.step}: {evidence}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
