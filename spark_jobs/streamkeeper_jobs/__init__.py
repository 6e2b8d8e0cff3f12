"""The driver of a flow, inside spark-submit: it computes, and its decisions are made in ``streamkeeper``."""

import sys

try:
    import streamkeeper as streamkeeper
except ImportError as error:
    # Of Spark's nodes the Python may be another one. No other try would help: exit_codes.Outcome.USAGE.
    print(error, file=sys.stderr)
    sys.exit(2)
