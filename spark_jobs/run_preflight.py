"""Look at flows' declarations with Spark: ``spark-submit run_preflight.py --flow PIPELINE.FLOW [--flow …]``.

Each is tried on a copy of its newest state; with ``--analyze``, planned on sources without rows instead.
Prints a line ``VERDICT {…}`` for each flow (streamkeeper.trial.verdict). With ``--sample ROWS [--of
NAME]`` it prints a line ``SAMPLE {…}`` with rows of the flow, of a view or of a source instead
(its shape: streamkeeper.trial.look.sampled). Settings come from the environment. Exit code 0; 2 for
wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from streamkeeper_jobs.driver.driver import declared_in, find
from streamkeeper_jobs.trial.analyze import analyze
from streamkeeper_jobs.trial.sample import sample
from streamkeeper_jobs.trial.try_flow import try_flow

from streamkeeper.errors import DeclarationError, RequestError, SettingsError, UsageError
from streamkeeper.exit_codes import Outcome
from streamkeeper.manifest.import_file import load_pipeline
from streamkeeper.settings import Settings
from streamkeeper.storage import open_storage
from streamkeeper.trial.verdict import SAMPLE, to_line


def main() -> int:
    """Read the command line and try the flows; give the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--flow", required=True, action="append", metavar="PIPELINE.FLOW")
    parser.add_argument("--analyze", action="store_true", help="plan the queries on sources without rows")
    parser.add_argument("--sample", type=int, metavar="ROWS", help="show rows of the flow")
    parser.add_argument("--of", metavar="NAME", help="the view or source whose rows are shown")
    arguments = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    try:
        settings = Settings.from_environment()
        for name in arguments.flow:
            home, file = find(settings, name)
            flow = declared_in(load_pipeline(file, settings.data), home.flow)
            with tempfile.TemporaryDirectory(prefix="streamkeeper-preflight-") as scratch:
                if arguments.sample is not None:
                    _show(*sample(spark, settings, flow, arguments.sample, arguments.of))
                    continue
                verdict = (
                    analyze(spark, settings, flow, Path(scratch))
                    if arguments.analyze
                    else try_flow(spark, settings, home, flow, open_storage(scratch))
                )
                print(to_line(verdict), flush=True)
    except (UsageError, RequestError, DeclarationError, SettingsError) as error:
        print(error, file=sys.stderr)
        return int(Outcome.USAGE)
    finally:
        spark.stop()
    return 0


def _show(frame: DataFrame, name: str) -> None:
    """Print rows as one line of JSON, each value as Spark's own ``CAST(… AS STRING)`` has it."""
    texts = frame.selectExpr(*(f"CAST(`{column}` AS STRING)" for column in frame.columns)).collect()
    value = {"of": name, "columns": frame.columns, "rows": [list(row) for row in texts]}
    print(f"{SAMPLE}{json.dumps(value)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
