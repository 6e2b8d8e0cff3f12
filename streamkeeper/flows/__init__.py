"""State of each flow beside its checkpoint: generations, leases, holds, ledger, and position."""
