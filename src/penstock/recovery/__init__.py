"""Verifying, backing up and restoring whole logs."""
