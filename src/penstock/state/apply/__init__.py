"""Applying commands: one module per family, and the machine that calls them."""
