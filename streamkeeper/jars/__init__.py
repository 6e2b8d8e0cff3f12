"""Which jars a driver needs beside Spark's own, and how a folder comes to hold exactly those of a lock."""
