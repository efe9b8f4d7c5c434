"""Produce requests under way: checked, handed to the log, answered."""
