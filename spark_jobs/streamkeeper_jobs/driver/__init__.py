"""The driver's process, from command line to exit code.

One flow, or several that share a driver.
"""
