"""All uses of internals of Spark's JVM, Delta and Kafka's Java clients, each pinned by a test."""
