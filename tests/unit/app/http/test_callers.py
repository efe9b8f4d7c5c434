"""Who a caller is by what it shows, and when it no longer is."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.app.http.callers import CLUSTER, Callers
from penstock.kafka.access import AclSettings, Authority
from penstock.peers.secret import ClusterSecret
from penstock.security.api_key import ApiKey, digest_of, new_key
from penstock.security.errors import AuthenticationFailedError
from penstock.security.principals import ANONYMOUS
from penstock.security.sasl.oauthbearer import Token
from penstock.state.read.view import StateView
from penstock.system import SystemClock

SECRET = "0123456789abcdef"
KEY_ID, KEY_SECRET, TEXT = new_key(b"12345678", b"s" * 32)
KEY = ApiKey(key_id=KEY_ID, digest=digest_of(KEY_SECRET), principal="User:alice", expires_ms=100)


def bearer(text: str) -> bytes:
    return f"Bearer {text}".encode()


def authority() -> Authority:
    return Authority(StateView(), AclSettings(), SystemClock(), None)


def callers(**changes: Any) -> Callers:
    values: dict[str, Any] = {
        "secret": ClusterSecret(SECRET),
        "authority": authority(),
        "keys": lambda: {KEY_ID: KEY},
        "now_ms": lambda: 50,
    }
    return Callers(**(values | changes))


def test_the_clusters_secret_may_do_everything() -> None:
    caller = callers().identify(bearer(SECRET), "127.0.0.1")
    assert caller.principal == CLUSTER
    assert caller.is_unbounded


def test_a_key_is_its_principal_and_no_more() -> None:
    caller = callers().identify(bearer(TEXT), "127.0.0.1")
    assert (caller.principal, caller.is_unbounded) == ("User:alice", False)
    assert caller.shown == f"key {KEY_ID}"


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Basic " + TEXT.encode(),
        bearer(SECRET[:-1]),
        bearer(TEXT[:-1] + "A"),
        bearer("psk_" + "0" * 16 + TEXT[20:]),
        bearer("a.b.c"),
        bearer("x" * (65 << 10)),
    ],
)
def test_nothing_else_is_taken(header: bytes | None) -> None:
    with pytest.raises(AuthenticationFailedError):
        callers().identify(header, "127.0.0.1")


def test_a_key_ends_when_it_is_revoked_or_over() -> None:
    keys = {KEY_ID: KEY}
    now_ms = 50
    known = callers(keys=lambda: keys, now_ms=lambda: now_ms)
    caller = known.identify(bearer(TEXT), "127.0.0.1")
    assert caller.is_live
    now_ms = 100
    assert not caller.is_live
    with pytest.raises(AuthenticationFailedError):
        known.identify(bearer(TEXT), "127.0.0.1")
    now_ms = 50
    assert caller.is_live
    del keys[KEY_ID]
    assert not caller.is_live
    with pytest.raises(AuthenticationFailedError):
        known.identify(bearer(TEXT), "127.0.0.1")


def test_a_token_is_its_user_until_it_expires() -> None:
    now_ms = 50
    known = callers(check_token=lambda _: Token("carol", 100), now_ms=lambda: now_ms)
    caller = known.identify(bearer("a.b.c"), "127.0.0.1")
    assert caller.principal == "User:carol"
    now_ms = 100
    assert not caller.is_live


def test_without_a_secret_who_shows_nothing_is_anonymous() -> None:
    caller = callers(secret=None).identify(None, "127.0.0.1")
    assert (caller.principal, caller.is_unbounded) == (ANONYMOUS, False)
    with pytest.raises(AuthenticationFailedError):
        callers(secret=None).identify(bearer("a wrong key"), "127.0.0.1")


def test_a_server_that_asks_for_nothing_takes_any_credential() -> None:
    known = Callers()
    assert known.identify(None, "127.0.0.1").is_unbounded
    assert known.identify(bearer("whatever"), "127.0.0.1").is_unbounded


def test_the_servers_own_secret_is_no_clusters() -> None:
    own = ClusterSecret("a-secret-of-one-process")
    known = callers(secret=None, own=own)
    assert known.identify(bearer("a-secret-of-one-process"), "127.0.0.1").is_unbounded
    assert known.takes_anyone
