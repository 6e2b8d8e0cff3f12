"""What a recovery is before it runs: its kind, its impact, its plan, which is shown, approved and kept."""
