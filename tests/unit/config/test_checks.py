"""What settings must be together, and addresses."""

from typing import Any

import msgspec
import pytest

from penstock.config.about import MIB
from penstock.config.addresses import Address, parse_address
from penstock.config.checks import check_together, warnings
from penstock.config.listeners import listeners
from penstock.config.settings import ServerSettings
from penstock.model.errors import InvalidRequestError


def with_settings(**changes: Any) -> ServerSettings:
    return msgspec.structs.replace(ServerSettings(), **changes)


CLUSTER = {
    "journal": "postgresql://penstock@db/penstock",
    "objects": "s3://bucket/prefix",
    "cluster_secret": "0123456789abcdef",
}


def test_a_cluster_s_settings_hold_together() -> None:
    check_together(with_settings(**CLUSTER))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kafka": "0.0.0.0:9092", "allow_insecure": True}, "advertised"),
        ({"kafka": ":9092", "allow_insecure": True}, "advertised"),
        ({"advertised": "0.0.0.0:9092"}, "advertised"),
        ({"kafka": "192.0.2.1:9092"}, "allow_insecure"),
        ({"kafka": "log.example.org:9092"}, "allow_insecure"),
        ({"http": "[::]:8080"}, "allow_insecure"),
        ({"kafka": "127.0.0.1"}, "HOST:PORT"),
        ({"kafka": "::1:9092"}, "HOST:PORT"),
        ({"kafka": "127.0.0.1:99999"}, "HOST:PORT"),
        ({"data": ""}, "data"),
        ({"wal_bytes_max": 100 * MIB}, "wal_file_bytes"),
        ({"segment_bytes": 300 * MIB}, "wal_bytes_max"),
        ({"block_cache_bytes": 7 * MIB}, "block_cache_bytes"),
        ({"group_min_session_timeout_ms": 2_000_000}, "group_max_session_timeout_ms"),
        ({"agent_timeout_ms": 900}, "heartbeat_ms"),
        ({"cluster_secret": "short"}, "16 characters"),
        ({**CLUSTER, "journal": "mysql://db"}, "postgresql://"),
        ({**CLUSTER, "objects": ""}, "share a store"),
        ({"objects": "s3://bucket/prefix"}, "objects .*set journal"),
        ({**CLUSTER, "cluster_secret": ""}, "cluster_secret"),
        ({**CLUSTER, "cluster_name": "Drop Table"}, "cluster_name"),
        ({**CLUSTER, "workers": 2}, "workers"),
        ({**CLUSTER, "http": ""}, "http"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidRequestError, match=named.replace("[", r"\[")):
        check_together(with_settings(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kafka": "localhost:0", "http": ""},
        {"kafka": "[::1]:9092", "http": "127.9.9.9:1"},
        {"kafka": "0.0.0.0:9092", "advertised": "log.example.org:9092", "allow_insecure": True},
    ],
)
def test_settings_that_make_sense_are_taken(changes: dict[str, Any]) -> None:
    check_together(with_settings(**changes))


def test_clients_are_told_the_advertised_address_else_the_listening_one() -> None:
    (own,) = listeners(with_settings(kafka="127.0.0.1:1"))
    assert own.advertised == ("127.0.0.1", 1)
    (other,) = listeners(with_settings(advertised="log:2"))
    assert other.advertised == ("log", 2)


def test_what_gives_up_safety_is_said_at_the_start() -> None:
    assert warnings(ServerSettings()) == []
    exposed = with_settings(kafka="192.0.2.1:9092", http="", allow_insecure=True)
    assert "192.0.2.1:9092" in warnings(exposed)[0]
    assert "HTTP" not in warnings(exposed)[0]
    both = with_settings(allow_insecure=True, http="192.0.2.1:8080", peer="192.0.2.1:8081")
    (plain,) = warnings(both)
    assert "HTTP on 192.0.2.1:8080 and peers on 192.0.2.1:8081" in plain
    assert "not encrypted" in plain
    assert "power cut" in warnings(with_settings(fsync=False))[0]


def test_an_ipv6_address_keeps_its_brackets() -> None:
    address = parse_address("[::1]:9092", setting="kafka")
    assert address == Address("::1", 9092)
    assert str(address) == "[::1]:9092"
