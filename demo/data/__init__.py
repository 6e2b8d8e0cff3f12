"""New data that keeps coming: files of changes, and orders in Kafka."""
