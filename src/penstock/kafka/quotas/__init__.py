"""Holds clients to their quotas: how much each has used, and for how long it must wait."""
