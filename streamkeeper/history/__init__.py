"""What happened: the numbers of each flow by minute and by hour, and the events of each pipeline.

Both are written at the places where it happens, are bounded, and outlive resets and renames.
"""
