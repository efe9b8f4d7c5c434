"""Coordination of consumer groups: the classic protocol, and shards of groups among agents."""
