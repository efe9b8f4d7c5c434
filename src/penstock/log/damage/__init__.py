"""Damage of what is stored: finding, reporting, copying from elsewhere, accepting a loss."""
