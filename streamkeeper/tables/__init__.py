"""What is known of the tables that flows write.

Past versions, backups, readers, other writers, and whose turn it is to write."""
