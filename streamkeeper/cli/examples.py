"""An example for the help of each command."""

from __future__ import annotations

EXAMPLES: dict[str, str] = {
    "": "flows",
    "doctor": "doctor",
    "init": "init streams",
    "setup": "setup --master 'local[2]'",
    "adopt": "adopt --scan dags --write pipelines",
    "check": "check --json",
    "preflight": "preflight --pipelines branch/pipelines",
    "flows": "flows --pipeline customers --watch 2",
    "flow": "flow customers.customers_incremental_flow",
    "logs": "logs customers.customers_incremental_flow --follow",
    "metrics": "metrics",
    "events": "events customers --since 2h --follow",
    "history": "history customers.customers_incremental_flow --since 7d",
    "inspect": "inspect customers.customers_incremental_flow --files",
    "advise": "advise customers.customers_incremental_flow",
    "jars": "jars /srv/streamkeeper/jars --s3",
    "tables": "tables --json",
    "backups": "backups --table customers.customers",
    "run": "run customers.customers_incremental_flow --available-now",
    "hold": 'hold customers.customers_incremental_flow --wait --reason "disk replacement"',
    "release": "release --all --waves 10",
    "accept": "accept customers.customers_incremental_flow",
    "rename": "rename customers.customers_incremental_flow customers.changes",
    "plan": "plan reset_checkpoint --flow customers.customers_incremental_flow",
    "recover": "recover reset_checkpoint --flow customers.customers_incremental_flow",
    "abandon": "abandon reset_checkpoint-cli-1f2e3d4c5b6a-0a1b2c3d",
}
"""By command, without the program's name."""

OF_KINDS: dict[str, str] = {
    "adopt": "--flow customers.customers_incremental_flow --checkpoint s3://lake/checkpoints/customers",
    "backup_table": "--table customers.customers",
    "backfill": "--flow customers.customers_incremental_flow",
    "reset_checkpoint": "--flow customers.customers_incremental_flow --start earliest",
    "restore_table": "--table customers.customers --version 12",
    "full_refresh": "--table customers.customers",
    "rebuild_without_downtime": "--table customers.customers",
    "full_refresh_with_backup": "--table customers.customers",
    "rehearse": '--flow customers.customers_incremental_flow --recovery rewind --request \'{"batch": "7"}\'',
    "rewind": "--flow customers.customers_incremental_flow --batch 7",
    "clean_up": "--pipeline customers",
    "tidy_tables": "--pipeline customers --tables customers.customers",
}
"""The options of each kind of recovery, for both ``plan`` and ``recover``."""


def example(command: str) -> str:
    """Return the example of a command, such as ``hold`` or ``plan rewind``."""
    _, _, kind = command.partition(" ")
    return f"Example: streamkeeper {f'{command} {OF_KINDS[kind]}' if kind else EXAMPLES[command]}"
