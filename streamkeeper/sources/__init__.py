"""Contents of sources, the position of a start in them, and the cost of moving there.

One package or module for each format: files, Kafka, Delta, rate, socket.
"""
