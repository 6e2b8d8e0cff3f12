"""The driver's process, from command line to exit code: of one flow, or of several that share it."""
