"""The log: append, fetch, caches, upload, retention, verification."""

from penstock.log.log import Log
from penstock.log.settings import LogSettings

__all__ = ["Log", "LogSettings"]
