"""What is used of Spark's JVM, Delta and Kafka's Java clients.

All uses of internals are here, each pinned by a test."""
