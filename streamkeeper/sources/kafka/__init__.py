"""Sources of Kafka: options, offsets, and the impact of a start. Brokers are asked without a JVM."""
