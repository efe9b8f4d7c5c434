"""Identities, errors and topic configs, which every package uses. Pure."""
