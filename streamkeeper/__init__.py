"""Streamkeeper keeps Spark Structured Streaming flows alive on Apache Airflow and brings them back when a
checkpoint breaks.
"""

__version__ = "0.1.0"
