"""Recoveries: a request becomes a plan, and a plan is carried out step by step.

Here is the engine; below it requests, plans, restart, steps and kinds."""
