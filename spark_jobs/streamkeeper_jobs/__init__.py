"""The driver of a flow, inside spark-submit: it computes, and its decisions are made in ``streamkeeper``."""
