"""Messages of OAUTHBEARER: what is read, and that a refusal is said in JSON first."""

import pytest

from penstock.security.errors import AuthenticationFailedError
from penstock.security.sasl.exchanges import Challenge, Proven
from penstock.security.sasl.oauthbearer import (
    TOKEN_BYTES_MAX,
    OauthBearerExchange,
    Token,
    parse_client_message,
)


def check(text: str) -> Token:
    if text != "right":
        raise AuthenticationFailedError("token: wrong")
    return Token("alice", 5000)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"n,,\x01auth=Bearer right\x01\x01", ("", "right")),
        (b"y,,\x01auth=bearer right\x01\x01", ("", "right")),
        (b"n,a=al=2Ci=3Dce,\x01auth=Bearer  right \x01\x01", ("al,i=ce", "right")),
        (b"n,,\x01host=x\x01auth=Bearer right\x01port=1\x01\x01", ("", "right")),
    ],
)
def test_a_message_is_read(message: bytes, expected: tuple[str, str]) -> None:
    assert parse_client_message(message) == expected


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"right",
        b"n,,\x01auth=Bearer right",
        b"n,,\x01auth=Bearer right\x01",
        b"n,,auth=Bearer right\x01\x01",
        b"n,,\x01auth=Basic right\x01\x01",
        b"n,,\x01token=Bearer right\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer right\x01\x01",
        b"n,alice,\x01auth=Bearer right\x01\x01",
        b"n,,,\x01auth=Bearer right\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n,,\x01auth=Bearer " + b"x" * TOKEN_BYTES_MAX + b"\x01\x01",
    ],
)
def test_a_malformed_message_is_refused(message: bytes) -> None:
    with pytest.raises(AuthenticationFailedError):
        OauthBearerExchange(check).evaluate(message)


def test_a_right_token_proves_its_user() -> None:
    step = OauthBearerExchange(check).evaluate(b"n,a=alice,\x01auth=Bearer right\x01\x01")
    assert step == Proven("alice", expires_ms=5000)


@pytest.mark.parametrize(
    "message",
    [b"n,,\x01auth=Bearer wrong\x01\x01", b"n,a=bob,\x01auth=Bearer right\x01\x01"],
)
def test_a_refusal_is_said_first(message: bytes) -> None:
    exchange = OauthBearerExchange(check)
    assert exchange.evaluate(message) == Challenge(b'{"status":"invalid_token"}')
    for answer in (b"\x01", b"n,,\x01auth=Bearer right\x01\x01"):
        with pytest.raises(AuthenticationFailedError):
            exchange.evaluate(answer)
