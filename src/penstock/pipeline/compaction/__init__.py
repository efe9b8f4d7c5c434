"""Compaction: which runs to join or to clean by key, and doing it on bytes."""
