"""Checks settings against one another, and warns of those that must not be overlooked. Pure."""

import re
from collections.abc import Iterable
from typing import Final

from penstock.config.addresses import parse_address, parse_counts
from penstock.config.listeners import ListenerSettings, authenticates, listeners
from penstock.config.security_checks import check_security, security_warnings
from penstock.config.settings import ServerSettings
from penstock.model.errors import InvalidRequestError

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
_SECRET_LENGTH_MIN: Final = 16
_JOURNAL_SCHEMES: Final = ("postgresql://", "postgres://")


def is_cluster(settings: ServerSettings) -> bool:
    """Whether other agents share the journal."""
    return bool(settings.journal)


def check_together(settings: ServerSettings) -> None:
    """Check what one field alone can't show.

    Raises:
        InvalidRequestError: names the settings that contradict one another.
    """
    check_places(settings)
    check_security(settings)
    http = parse_address(settings.http, setting="http") if settings.http else None
    peer = parse_address(settings.peer, setting="peer") if settings.peer else None
    parse_counts(
        settings.max_connections_per_ip_overrides, setting="max_connections_per_ip_overrides"
    )
    for listener in listeners(settings):
        _check_listener(listener, settings)
    if settings.block_cache_bytes < 2 * settings.block_bytes:
        raise InvalidRequestError(
            "read setting",
            "block_cache_bytes",
            f"{settings.block_cache_bytes} bytes for blocks of {settings.block_bytes}",
            "give room for two blocks at least: a batch may lie across two",
        )
    for name, address in (("http", http), ("peer", peer)):
        if address and not address.is_loopback and not settings.allow_insecure:
            raise InvalidRequestError(
                "read setting",
                name,
                f"{address} can be reached from other machines, and what passes there, credentials "
                "included, is not encrypted yet",
                "listen on 127.0.0.1, or set allow_insecure = true if the network is trusted",
            )
    if settings.wal_bytes_max < 2 * settings.wal_file_bytes:
        raise InvalidRequestError(
            "read setting",
            "wal_bytes_max",
            f"{settings.wal_bytes_max} bytes hold no two files of {settings.wal_file_bytes}",
            "raise wal_bytes_max or lower wal_file_bytes",
        )
    if settings.segment_bytes > settings.wal_bytes_max // 2:
        raise InvalidRequestError(
            "read setting",
            "segment_bytes",
            f"{settings.segment_bytes} bytes are more than half of wal_bytes_max, so producers "
            "would wait while a segment is stored",
            "lower segment_bytes or raise wal_bytes_max",
        )
    if settings.compaction and not settings.http:
        raise _refused(
            "compaction",
            f"{settings.compaction} needs the server's HTTP port, and http is empty",
            "set http, for example to 127.0.0.1:8080, or leave compaction out",
        )
    _check_cluster(settings)
    if settings.group_min_session_timeout_ms > settings.group_max_session_timeout_ms:
        raise InvalidRequestError(
            "read setting",
            "group_min_session_timeout_ms",
            "it is above group_max_session_timeout_ms",
        )
    for principal in super_users(settings):
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name):
            raise _refused(
                "super_users",
                f"{principal!r} is not a principal",
                "User:NAME, separated by semicolons",
            )
    heartbeat_ms = settings.group_consumer_heartbeat_interval_ms
    if heartbeat_ms >= settings.group_consumer_session_timeout_ms:
        raise InvalidRequestError(
            "read setting",
            "group_consumer_heartbeat_interval_ms",
            f"{heartbeat_ms} ms are not below group_consumer_session_timeout_ms, so every member"
            " would be taken for gone between two heartbeats",
            "lower it to a third of the session's time",
        )


def super_users(settings: ServerSettings) -> frozenset[str]:
    """Return the principals that may do everything."""
    named = (text.strip() for text in settings.super_users.split(";"))
    return frozenset(principal for principal in named if principal)


def check_places(settings: ServerSettings) -> None:
    """Check what says where journal and bytes are, which is all that a reader of them needs.

    Raises:
        InvalidRequestError: names the settings that contradict one another.
    """
    if not settings.data:
        raise _refused("data", "the data directory has no name", "give a directory")
    if not is_cluster(settings):
        if settings.objects:
            # Else everything would stay on the local disk without a word.
            raise _refused(
                "objects",
                "it is for a cluster; a server alone keeps its objects in the data directory",
                "set journal, or leave objects out",
            )
        return
    if not settings.journal.startswith(_JOURNAL_SCHEMES):
        raise _refused(
            "journal", "it isn't the URL of a journal", "postgresql://USER@HOST/DATABASE"
        )
    if _NAME.fullmatch(settings.cluster_name) is None:
        raise _refused(
            "cluster_name",
            f"{settings.cluster_name!r} can't be part of a table's name",
            "a letter, then at most 39 letters, digits and underscores, all lower case",
        )
    if not settings.objects:
        raise _refused(
            "objects", "agents of a cluster share a store", "s3://BUCKET/PREFIX or file:///PATH"
        )


def _check_listener(listener: ListenerSettings, settings: ServerSettings) -> None:
    setting, address, advertised = listener.setting, listener.address, listener.advertised
    own = setting == "kafka"
    if advertised is not address and (advertised.is_wildcard or advertised.port == 0):
        raise InvalidRequestError(
            "read setting",
            "advertised" if own else "advertised_listeners",
            f"clients cannot connect to {advertised}",
            "give the name and port under which they reach this server",
        )
    if advertised.is_wildcard:
        raise InvalidRequestError(
            "read setting",
            setting,
            f"clients cannot connect to the wildcard address {address}",
            "set advertised to the HOST:PORT under which they reach this server"
            if own
            else f"name {listener.name} in advertised_listeners, as clients reach it",
        )
    if not (address.is_loopback or settings.allow_insecure or authenticates(listener, settings)):
        raise InvalidRequestError(
            "read setting",
            setting,
            f"{address} can be reached from other machines, and clients of {listener.protocol} "
            "are not asked who they are",
            "listen on 127.0.0.1, make it a listener of SASL_SSL, or set allow_insecure = true if "
            "the network is trusted",
        )


def _check_cluster(settings: ServerSettings) -> None:
    if settings.workers > 1 and is_cluster(settings):
        raise _refused("workers", "agents of a cluster are one process each", "start several")
    if settings.cluster_secret and len(settings.cluster_secret) < _SECRET_LENGTH_MIN:
        raise _refused(
            "cluster_secret", f"it has fewer than {_SECRET_LENGTH_MIN} characters", "take a longer"
        )
    if settings.heartbeat_ms * 2 > settings.agent_timeout_ms:
        raise _refused(
            "agent_timeout_ms",
            f"{settings.agent_timeout_ms} ms leave no room for two beats of "
            f"{settings.heartbeat_ms} ms",
            "raise agent_timeout_ms or lower heartbeat_ms",
        )
    if not is_cluster(settings):
        return
    if not settings.cluster_secret:
        raise _refused(
            "cluster_secret",
            "agents know one another by it",
            "PENSTOCK_CLUSTER_SECRET=$(openssl rand -hex 32), the same for all agents",
        )
    if not settings.http:
        raise _refused("http", "other agents reach this one by it", "give HOST:PORT")


def _refused(setting: str, detail: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError("read setting", setting, detail, hint)


def warnings(settings: ServerSettings) -> list[str]:
    """Return what is allowed and yet must be said at start, one sentence each."""
    found = []
    anyone = _reached_from_others(
        ("Kafka", str(listener.address))
        for listener in listeners(settings)
        if not authenticates(listener, settings)
    )
    if anyone:
        found.append(
            f"allow_insecure: {anyone} can be reached from other machines, and clients are not "
            "asked who they are"
        )
    plain = _reached_from_others((("HTTP", settings.http), ("peers", settings.peer)))
    if plain:
        found.append(
            f"allow_insecure: {plain} can be reached from other machines, and is not encrypted"
        )
    found.extend(security_warnings(settings))
    if not settings.fsync:
        found.append(
            "fsync is off: a power cut loses records that were acknowledged, and may leave a WAL "
            "with which the server refuses to start"
        )
    return found


def _reached_from_others(ports: Iterable[tuple[str, str]]) -> str:
    """Name the ports that listen beyond this machine; "": none does."""
    return " and ".join(
        f"{name} on {text}"
        for name, text in ports
        if text and not parse_address(text, setting=name).is_loopback
    )
