"""The DAG of a flow: gate, submission, supervision. One task runs for as long as the flow does."""
