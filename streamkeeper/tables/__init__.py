"""Tables that flows write: past versions, backups, readers, other writers, and the write lock."""
