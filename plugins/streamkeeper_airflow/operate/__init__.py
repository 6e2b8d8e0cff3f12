"""What runs beside flows and recoveries.

The monitor, alerts, holds, driver logs, notes."""
