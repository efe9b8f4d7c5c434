"""Every connection is an open file, and the storage must never be short of open files.

A server asks for as many as the system gives, and admits only so many clients that enough are left
for the WAL, SQLite and segment objects: a refused client connects again, but a commit that gets no
descriptor holds up every client.
"""

import logging
import resource
from typing import Final

import msgspec

from penstock.config.checks import is_cluster
from penstock.config.settings import ServerSettings
from penstock.model.errors import InvalidRequestError

logger = logging.getLogger(__name__)

STORAGE_FILES: Final = 200
"""Open files that are kept for the storage: WAL files, SQLite's, objects being read and written."""
_FINITE_LIMITS: Final = (1 << 20, 10_240)
"""These soft limits are tried where the hard limit is "unlimited" but the system refuses it: macOS
accepts none above kern.maxfilesperproc, and accepts 10,240 (OPEN_MAX) always. Source: setrlimit(2)
of macOS."""


def fit_open_files(settings: ServerSettings) -> ServerSettings:
    """Raise the process's limit of open files, then fit `connections_max` into it.

    A warning is logged if `connections_max` has to be lowered.

    Raises:
        InvalidRequestError: the limit leaves no open file for clients.
    """
    limit = raise_limit()
    kept = kept_files(settings)
    connections_max = connections_within(limit, settings.connections_max, kept=kept)
    if connections_max < settings.connections_max:
        logger.warning(
            "connections_max is %d instead of %d: this process may have %d files open, and "
            "%d of them are kept for the storage and HTTP; raise the limit with ulimit -n",
            connections_max,
            settings.connections_max,
            limit,
            kept,
        )
    return msgspec.structs.replace(settings, connections_max=connections_max)


def kept_files(settings: ServerSettings) -> int:
    """Return how many open files are kept for other things than Kafka's clients."""
    ports = bool(settings.http) + is_cluster(settings)
    return STORAGE_FILES + ports * settings.http_connections_max


def connections_within(limit: int, wanted: int, *, kept: int) -> int:
    """Return how many connections fit a limit of open files, at most `wanted`.

    Args:
        kept: open files that connections don't get.

    Raises:
        InvalidRequestError: not one connection fits.
    """
    if limit <= kept:
        raise InvalidRequestError(
            "start",
            "limit of open files",
            f"{limit} files are too few: the storage and HTTP keep {kept} for themselves",
            "raise the limit with ulimit -n, or lower http_connections_max",
        )
    return min(wanted, limit - kept)


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard limit; return the new soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [hard]
    if hard == resource.RLIM_INFINITY:
        limits += [limit for limit in _FINITE_LIMITS if limit > soft]
    if soft not in (hard, resource.RLIM_INFINITY):
        for limit in limits:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            except (ValueError, OSError) as error:
                logger.debug("the limit of open files cannot be %d: %s", limit, error)
            else:
                soft = limit
                break
    # The resource module shows "unlimited" as a negative number.
    return _FINITE_LIMITS[0] if soft == resource.RLIM_INFINITY else soft
