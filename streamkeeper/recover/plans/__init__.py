"""What a recovery is before it is an act: its kind, its plan, its price.

A plan is a value that is shown, approved, carried out and kept."""
