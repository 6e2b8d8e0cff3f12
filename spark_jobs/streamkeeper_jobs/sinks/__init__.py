"""Ways in which a batch's rows reach a target.

One module for each: append, AUTO CDC, update, complete, files, Kafka, a function; and the write lock.
"""
