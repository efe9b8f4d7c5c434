"""Opening a log: checking what the last process left, and rebuilding what is missing."""
