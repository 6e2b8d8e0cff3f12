"""How rows reach a table.

Appends, AUTO CDC, and the turn of the flow that may write.
"""
