"""Run Spark Structured Streaming flows on Apache Airflow and recover them when a checkpoint breaks."""

__version__ = "0.1.0"
