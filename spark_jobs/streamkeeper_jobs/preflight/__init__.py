"""A declaration tried on a copy of a checkpoint: does Spark go on with this state?"""
