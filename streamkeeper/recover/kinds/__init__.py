"""One module a kind of recovery.

Each gives its plan and its list of steps."""
