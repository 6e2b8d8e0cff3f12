"""The DAG of a recovery, made from a kind of streamkeeper.recover: form, plan, approval, steps."""
