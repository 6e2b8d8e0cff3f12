"""Steps that several kinds of recovery share.

Each can be run again after a crash."""
