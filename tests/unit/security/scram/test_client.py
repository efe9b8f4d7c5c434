"""The client's side of SCRAM against the server's, and against servers that are none."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.security.errors import AuthenticationFailedError
from penstock.security.scram.client import ScramClient
from penstock.security.scram.credential import ScramMechanism, derive, salt_password
from penstock.security.scram.server import ScramServer
from support.examples import examples

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


def server(mechanism: ScramMechanism, user: str, password: bytes) -> ScramServer:
    salted = salt_password(mechanism, password, salt=SALT, iterations=4096)
    known = derive(mechanism, salted, salt=SALT, iterations=4096)
    return ScramServer(
        mechanism, nonce="xyz", find=lambda name: known if name == user else None, pepper=b"p"
    )


def client(password: bytes = b"pencil", user: str = "user") -> ScramClient:
    return ScramClient(ScramMechanism.SHA_256, user, password, nonce="rOprNGfwEbeRWgbNEkqO")


@settings(max_examples=examples(0.2), deadline=None)
@given(
    mechanism=st.sampled_from(ScramMechanism),
    user=st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20),
    password=st.binary(min_size=1, max_size=40),
)
def test_both_sides_agree(mechanism: ScramMechanism, user: str, password: bytes) -> None:
    there = server(mechanism, user, password)
    here = ScramClient(mechanism, user, password, nonce="abc")
    here.verify(there.evaluate(here.final(there.evaluate(here.first()))))
    assert there.complete
    assert there.username == user


def test_a_wrong_password_is_refused() -> None:
    there, here = server(ScramMechanism.SHA_256, "user", b"pencil"), client(b"pencils")
    first = there.evaluate(here.first())
    with pytest.raises(AuthenticationFailedError):
        there.evaluate(here.final(first))


def test_a_server_that_does_not_know_the_credential_is_found_out() -> None:
    here = client()
    here.final(f"r=rOprNGfwEbeRWgbNEkqOx,s={base64.b64encode(SALT).decode()},i=4096".encode())
    for answer in (b"", b"v=", b"e=no", b"v=AAAA", b"v=" + base64.b64encode(bytes(32))):
        with pytest.raises(AuthenticationFailedError, match="doesn't know"):
            here.verify(answer)


def test_nothing_is_verified_before_the_last_message() -> None:
    with pytest.raises(AuthenticationFailedError):
        client().verify(b"v=")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"r=other,s=AAAA,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqO,s=AAAA,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=A,i=4096",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=0",
        b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=1000000000",
        b"\xff",
    ],
)
def test_a_malformed_or_costly_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(AuthenticationFailedError):
        client().final(answer)
