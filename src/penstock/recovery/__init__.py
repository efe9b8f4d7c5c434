"""Whole logs are verified, backed up and restored here."""
