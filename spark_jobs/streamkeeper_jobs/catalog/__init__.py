"""Names of tables in the session catalog: given to the tables that flows write, looked up for sources."""
