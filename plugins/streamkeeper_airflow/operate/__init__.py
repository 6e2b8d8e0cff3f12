"""Tasks that run beside flows and recoveries.

The monitor, alerts, holds, driver logs, notes.
"""
