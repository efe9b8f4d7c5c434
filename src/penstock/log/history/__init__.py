"""Histories that the journal has lost: noting, keeping, and appending their records again."""
