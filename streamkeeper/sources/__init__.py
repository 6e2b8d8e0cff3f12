"""Contents of sources, a start's position in them, and the cost of moving there, by format."""
