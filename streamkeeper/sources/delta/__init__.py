"""Sources of Delta tables: row statistics and the impact of a start. Positions are log versions."""
