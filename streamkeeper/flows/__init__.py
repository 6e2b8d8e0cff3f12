"""What is kept of each flow beside its checkpoint.

Generations, leases, holds, the ledger, and the position that a flow has reached."""
