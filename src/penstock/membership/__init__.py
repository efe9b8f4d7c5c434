"""Agents among agents: beats, silence, fences, and comparing digests of their states."""
