"""What watches a driver that runs: for a task, or, for many flows at once, in the triggerer."""
