"""Listeners, and what their protocols need of other settings."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.config.checks import check_together, warnings
from penstock.config.listeners import authenticates, listeners
from penstock.config.settings import ServerSettings
from penstock.model.errors import InvalidRequestError

TLS = {"ssl_certificate": "/c.pem"}
TOKENS = {
    "listeners": "SASL_SSL://127.0.0.1:9093",
    "sasl_enabled_mechanisms": "OAUTHBEARER",
    "sasl_oauthbearer_jwks": "/keys.json",
    "sasl_oauthbearer_expected_issuer": "https://issuer.example",
    "sasl_oauthbearer_expected_audience": "penstock",
    **TLS,
}


def with_settings(**changes: Any) -> ServerSettings:
    return msgspec.structs.replace(ServerSettings(), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"listeners": "SASL_SSL://0.0.0.0:9093", "advertised_listeners": "SASL_SSL://log.example:1"}
        | TLS,
        {"listeners": "SSL://127.0.0.1:9093,PLAINTEXT://127.0.0.1:9092"} | TLS,
        {"listeners": "A://127.0.0.1:9093", "listener_security_protocol_map": "a:sasl_plaintext"},
        TOKENS,
    ],
)
def test_settings_hold_together(changes: dict[str, Any]) -> None:
    check_together(with_settings(**changes))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"listeners": "127.0.0.1:9092"}, "listeners"),
        ({"listeners": "PLAINTEXT://127.0.0.1:1,PLAINTEXT://127.0.0.1:2"}, "named twice"),
        ({"listeners": "A://127.0.0.1:1"}, "listener_security_protocol_map"),
        (
            {"listeners": "A://127.0.0.1:1", "listener_security_protocol_map": "A:TLS"},
            "listener_security_protocol_map",
        ),
        (
            {"listeners": "PLAINTEXT://127.0.0.1:1", "advertised_listeners": "B://h:1"},
            "advertised_listeners",
        ),
        ({"listeners": "SASL_SSL://127.0.0.1:9093"}, "ssl_certificate"),
        ({"listeners": "SSL://127.0.0.1:9093"}, "ssl_certificate"),
        (
            {"listeners": "SSL://127.0.0.1:9093", "ssl_client_auth": "required"} | TLS,
            "ssl_ca",
        ),
        (
            {"listeners": "SASL_PLAINTEXT://127.0.0.1:1", "sasl_enabled_mechanisms": ""},
            "sasl_enabled_mechanisms",
        ),
        (
            {"listeners": "SASL_PLAINTEXT://127.0.0.1:1", "sasl_enabled_mechanisms": "GSSAPI"},
            "'GSSAPI' is unknown",
        ),
        # A client that needn't say who it is comes from this machine, unless the setting says so.
        ({"listeners": "PLAINTEXT://192.0.2.1:9092"}, "allow_insecure"),
        (
            {"listeners": "SSL://192.0.2.1:9093", "ssl_client_auth": "requested", "ssl_ca": "/a"}
            | TLS,
            "allow_insecure",
        ),
        *[(TOKENS | {name: ""}, name) for name in TOKENS if name.startswith("sasl_oauthbearer")],
        (TOKENS | {"sasl_oauthbearer_algorithms": "none"}, "sasl_oauthbearer_algorithms"),
        (TOKENS | {"sasl_oauthbearer_algorithms": "HS256"}, "sasl_oauthbearer_algorithms"),
        ({"ssl_principal_mapping_rules": "RULE:("}, "ssl_principal_mapping_rules"),
    ],
)
def test_what_is_missing_or_contradicts_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        check_together(with_settings(**changes))


def test_a_listener_authenticates_by_its_protocol() -> None:
    text = "PLAINTEXT://h:1,SSL://h:2,SASL_PLAINTEXT://h:3,SASL_SSL://h:4"
    for client_auth, expected in (
        ("none", [False, False, True, True]),
        ("requested", [False, False, True, True]),
        ("required", [False, True, True, True]),
    ):
        settings = with_settings(listeners=text, ssl_client_auth=client_auth)
        assert [authenticates(one, settings) for one in listeners(settings)] == expected


def test_secrets_in_the_clear_are_warned_of() -> None:
    open_to_all = with_settings(
        listeners="SASL_PLAINTEXT://192.0.2.1:9092", sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256"
    )
    assert any("PLAIN without TLS" in line for line in warnings(open_to_all))
    hashed = msgspec.structs.replace(open_to_all, sasl_enabled_mechanisms="SCRAM-SHA-256")
    assert not any("without TLS" in line for line in warnings(hashed))
