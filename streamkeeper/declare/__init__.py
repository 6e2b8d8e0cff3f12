"""What a pipeline file may declare, and the checks of it.

The language of sources, views, tables and flows, as plain values."""
