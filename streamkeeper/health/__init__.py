"""How each flow does, for people and for scrapers: one row a flow, from the state folder alone.

No JVM is started, nothing is changed, and a flow that cannot be read is a row that says so.
"""
