"""Deleting: retention by time and size, condemned objects, orphans."""
