"""Language of pipeline files, and checks: sources, views, tables and flows are plain values."""
