"""State of each flow beside its checkpoint: generations, leases, holds, the ledger, and the position
reached.
"""
