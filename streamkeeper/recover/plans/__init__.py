"""What a recovery is before it runs: its kind, its plan, its impact.

A plan is a value that is shown, approved, carried out and kept.
"""
