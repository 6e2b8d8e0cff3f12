"""Internals of Spark's JVM, Delta and Kafka's Java clients.

All uses of them are here, each pinned by a test.
"""
