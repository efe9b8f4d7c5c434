"""Connections: what they hold, how they are admitted, read, answered and ended."""
