"""Tasks that run beside flows and recoveries: the monitor, alerts, holds, driver logs, notes."""
