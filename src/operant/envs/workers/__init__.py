"""Worker processes that hold environments: how they start, what they run, and when they are replaced."""
