"""Run flows until they are told to stop: ``spark-submit run_flow.py --flow PIPELINE.FLOW [--flow
PIPELINE.OTHER]… [--available-now] [--take-over]``.

Several flows run as queries of one application, where their pipeline declares ``shared_driver``.

Settings come from the environment (streamkeeper.settings); exit codes are those of
streamkeeper.exit_codes.
"""

from __future__ import annotations

import argparse
import sys

from streamkeeper_jobs.driver.application import run

from streamkeeper.clusters.host import check_spark
from streamkeeper.errors import SettingsError
from streamkeeper.exit_codes import Outcome
from streamkeeper.settings import Settings


def main() -> int:
    """Read the command line and run the flows; give the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--flow", required=True, action="append", metavar="PIPELINE.FLOW", help="a flow, by its full name"
    )
    parser.add_argument("--available-now", action="store_true", help="process all available input, then stop")
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="try the changed declaration, and take over from the driver that runs if it fits",
    )
    arguments = parser.parse_args()
    try:
        settings = Settings.from_environment()
        check_spark()
    except SettingsError as error:
        print(error, file=sys.stderr)
        return Outcome.USAGE
    return run(settings, arguments.flow, arguments.available_now, arguments.take_over).exit_code


if __name__ == "__main__":
    sys.exit(main())
