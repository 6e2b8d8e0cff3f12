"""Put small files of tables together and remove what nobody needs: ``spark-submit run_tidying.py --plan
JSON``.

The plan is what streamkeeper.recover.kinds.tidy_tables gives as text; settings come from the environment. One
line of JSON a table is printed. Exit code 0; 1 if a table could not be tidied (the others were); 2 for wrong
usage.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import SparkSession
from streamkeeper_jobs.recover.tidy_tables import tidy_all

from streamkeeper.errors import RequestError, SettingsError
from streamkeeper.exit_codes import Outcome
from streamkeeper.recover.kinds.tidy_tables import from_text
from streamkeeper.settings import Settings


def main() -> int:
    """Read the command line and tidy; give the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--plan", required=True, metavar="JSON", help="what to do to which tables")
    try:
        tidies = from_text(parser.parse_args().plan)
        settings = Settings.from_environment()
    except (RequestError, SettingsError) as error:
        print(error, file=sys.stderr)
        return int(Outcome.USAGE)
    spark = SparkSession.builder.getOrCreate()
    try:
        return 0 if tidy_all(spark, settings, tidies) else 1
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
