"""The DAG of a recovery: form, plan, approval, steps.

Made from a kind of streamkeeper.recover.
"""
