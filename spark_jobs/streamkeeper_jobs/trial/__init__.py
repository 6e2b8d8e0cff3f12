"""A declaration, or a recovery, tried on a copy before it is real."""
