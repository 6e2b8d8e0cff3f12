"""What an installation has and lacks, what a new one begins with, and which jobs could move into it."""
