"""The console script `penstock`."""

from penstock.cli.main import main

__all__ = ["main"]
