"""A recovery, or a declaration, carried out on a copy, and what it came to."""
