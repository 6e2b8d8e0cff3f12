"""Whether a flow's declaration goes on with its checkpoint, before it is deployed: what can be told without
Spark, and what a verdict says.
"""
