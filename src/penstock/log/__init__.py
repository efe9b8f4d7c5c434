"""The log: append, fetch, caches, upload, retention, verification."""

from penstock.log.limits import LogLimits
from penstock.log.log import Log

__all__ = ["Log", "LogLimits"]
