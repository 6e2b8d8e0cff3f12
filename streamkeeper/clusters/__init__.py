"""Clusters that run drivers themselves (deploy mode ``cluster``).

What each says of its drivers, and how it is asked to start and to end one."""
