"""Language of pipeline files and the checks of what they declare.

Sources, views, tables and flows are plain values.
"""
