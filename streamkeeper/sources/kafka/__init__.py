"""Sources of Kafka: options, offsets, and the cost of a start.

Brokers are asked without a JVM.
"""
