"""What settings must be together, and which of them must not be overlooked. Pure."""

from penstock.config.addresses import Address, parse_address
from penstock.config.settings import ServerSettings
from penstock.model.errors import InvalidRequestError


def advertised_address(settings: ServerSettings) -> Address:
    """What clients are told to connect to; the listening address where nothing is set.

    Its port is 0 where the listening port is chosen at start.
    """
    if settings.advertised:
        return parse_address(settings.advertised, setting="advertised")
    return parse_address(settings.kafka, setting="kafka")


def check_together(settings: ServerSettings) -> None:
    """Check what one field alone can't show.

    Raises:
        InvalidRequestError: names the settings that contradict one another.
    """
    kafka = parse_address(settings.kafka, setting="kafka")
    http = parse_address(settings.http, setting="http") if settings.http else None
    if not settings.data:
        raise InvalidRequestError("read setting", "data", "the data directory has no name")
    if settings.advertised:
        advertised = parse_address(settings.advertised, setting="advertised")
        if advertised.is_wildcard or advertised.port == 0:
            raise InvalidRequestError(
                "read setting",
                "advertised",
                f"clients cannot connect to {advertised}",
                "give the name and port under which they reach this server",
            )
    elif kafka.is_wildcard:
        raise InvalidRequestError(
            "read setting",
            "kafka",
            f"clients cannot connect to the wildcard address {kafka}",
            "set advertised to the HOST:PORT under which they reach this server",
        )
    if settings.block_cache_bytes < 2 * settings.block_bytes:
        raise InvalidRequestError(
            "read setting",
            "block_cache_bytes",
            f"{settings.block_cache_bytes} bytes for blocks of {settings.block_bytes}",
            "give room for two blocks at least: a batch may lie across two",
        )
    for name, address in (("kafka", kafka), ("http", http)):
        if address and not address.is_loopback and not settings.allow_insecure:
            raise InvalidRequestError(
                "read setting",
                name,
                f"{address} can be reached from other machines, and there is no encryption, "
                "authentication or authorization yet",
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
    if settings.group_min_session_timeout_ms > settings.group_max_session_timeout_ms:
        raise InvalidRequestError(
            "read setting",
            "group_min_session_timeout_ms",
            "it is above group_max_session_timeout_ms",
        )


def warnings(settings: ServerSettings) -> list[str]:
    """What is allowed and yet must be said at start, one sentence each."""
    found = []
    exposed = [
        f"{name} on {text}"
        for name, text in (("Kafka", settings.kafka), ("HTTP", settings.http))
        if text and not parse_address(text, setting=name).is_loopback
    ]
    if exposed:
        found.append(
            f"allow_insecure: {' and '.join(exposed)} can be reached from other machines without "
            "encryption, authentication or authorization"
        )
    if not settings.fsync:
        found.append(
            "fsync is off: a power cut loses records that were acknowledged, and may leave a WAL "
            "with which the server refuses to start"
        )
    return found
