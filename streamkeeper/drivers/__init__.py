"""Drivers of flows: submitting, watching, stopping and judging them; failure classes and alerts."""
