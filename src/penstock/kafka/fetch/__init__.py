"""Fetches: sessions, what is read for each partition, and waiting."""
