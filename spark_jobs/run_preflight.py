"""Try flows' declarations on copies of their newest states: ``spark-submit run_preflight.py --flow
PIPELINE.FLOW [--flow …]``.

Prints a line ``VERDICT {…}`` for each flow (streamkeeper.preflight.verdict). Settings come from the
environment. Exit code 0; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

from pyspark.sql import SparkSession
from streamkeeper_jobs.driver.driver import declared_in, find
from streamkeeper_jobs.preflight.try_flow import try_flow

from streamkeeper.errors import UsageError
from streamkeeper.exit_codes import Outcome
from streamkeeper.manifest.import_file import load_pipeline
from streamkeeper.preflight.verdict import told
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage


def main() -> int:
    """Read the command line and try the flows; give the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--flow", required=True, action="append", metavar="PIPELINE.FLOW")
    asked = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    try:
        settings = Settings.from_environment()
        for name in asked.flow:
            home, file = find(settings, name)
            flow = declared_in(load_pipeline(file, settings.data), home.flow)
            with tempfile.TemporaryDirectory(prefix="streamkeeper-preflight-") as scratch:
                print(
                    told(try_flow(spark, settings, home, flow, open_storage(scratch), folder=name)),
                    flush=True,
                )
    except UsageError as error:
        print(error, file=sys.stderr)
        return int(Outcome.USAGE)
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
