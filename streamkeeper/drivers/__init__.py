"""Drivers of flows: how they are submitted, watched, stopped and judged.

Also what a failure means, and who is alerted."""
