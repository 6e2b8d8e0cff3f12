"""One streaming query: its job, readers, DataFrame and watch. It knows no table and no generation."""
