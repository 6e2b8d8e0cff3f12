"""What watches a flow that runs: progress, lag, batch numbers, failures in series, expectations, alerts."""
