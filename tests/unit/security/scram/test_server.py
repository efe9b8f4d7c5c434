"""The server's side of SCRAM: RFC 7677's dialogue, and what attackers and broken clients send."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.errors import AuthenticationFailedError
from penstock.security.scram.credential import (
    ScramCredential,
    ScramMechanism,
    derive,
    has_password,
    salt_password,
)
from penstock.security.scram.server import ScramServer

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = f"n,,n=user,r={CLIENT_NONCE}"
NONCE = CLIENT_NONCE + SERVER_NONCE


def credential(
    mechanism: ScramMechanism = ScramMechanism.SHA_256, password: bytes = b"pencil"
) -> ScramCredential:
    salted = salt_password(mechanism, password, salt=SALT, iterations=4096)
    return derive(mechanism, salted, salt=SALT, iterations=4096)


CREDENTIAL = credential()


def server(found: ScramCredential | None = CREDENTIAL, nonce: str = SERVER_NONCE) -> ScramServer:
    return ScramServer(
        ScramMechanism.SHA_256,
        nonce=nonce,
        find=lambda user: found if user == "user" else None,
        pepper=b"pepper",
    )


def final(
    first_answer: bytes,
    *,
    first: str = FIRST,
    password: bytes = b"pencil",
    nonce: str | None = None,
    binding: bytes = b"n,,",
) -> bytes:
    """The last message of a client that knows the password."""
    answer = dict(part.split("=", 1) for part in first_answer.decode().split(","))
    salted = hashlib.pbkdf2_hmac(
        "sha256", password, base64.b64decode(answer["s"]), int(answer["i"])
    )
    without_proof = (
        f"c={base64.b64encode(binding).decode()},r={answer['r'] if nonce is None else nonce}"
    )
    bare = first.split(",", 2)[2]
    signed = f"{bare},{first_answer.decode()},{without_proof}".encode()
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def test_the_dialogue_of_rfc_7677() -> None:
    exchange = server()
    assert exchange.evaluate(FIRST.encode()) == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert not exchange.complete
    answer = exchange.evaluate(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert answer == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.complete
    assert exchange.username == "user"


def test_rfc_5802_s_keys_are_the_hash_of_the_same_construction() -> None:
    # RFC 5802's own vector is of SHA-1; its construction is checked above. SHA-512 differs in the
    # hash alone.
    found = credential(ScramMechanism.SHA_512)
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", SALT, 4096)
    client_key = hmac.new(salted, b"Client Key", "sha512").digest()
    assert found.stored_key == hashlib.sha512(client_key).digest()
    assert found.server_key == hmac.new(salted, b"Server Key", "sha512").digest()


def test_a_wrong_password_is_refused() -> None:
    exchange = server()
    answer = exchange.evaluate(FIRST.encode())
    with pytest.raises(AuthenticationFailedError, match="invalid credentials"):
        exchange.evaluate(final(answer, password=b"pencils"))
    assert not exchange.complete


def test_a_user_that_does_not_exist_is_refused_where_a_wrong_password_is() -> None:
    first = FIRST.replace("user", "nobody")
    answers = []
    for nonce in ("a", "b"):
        exchange = server(nonce=nonce)
        answers.append(exchange.evaluate(first.encode()))
        with pytest.raises(AuthenticationFailedError, match="invalid credentials"):
            exchange.evaluate(final(answers[-1], first=first))
    # The salt is the same each time, as an existing user's is, and another user's is another.
    salts = [answer.split(b",")[1] for answer in answers]
    assert salts[0] == salts[1]
    assert server().evaluate(FIRST.replace("user", "else").encode()).split(b",")[1] != salts[0]


def test_no_proof_fits_a_user_that_does_not_exist() -> None:
    # Its stored key is zeros: a proof of which SHA-256 gives zeros would be needed.
    exchange = server(found=None)
    answer = exchange.evaluate(FIRST.encode())
    signed = f"n=user,r={CLIENT_NONCE},{answer.decode()},c=biws,r={NONCE}".encode()
    signature = hmac.digest(bytes(32), signed, "sha256")
    proof = base64.b64encode(signature).decode()
    with pytest.raises(AuthenticationFailedError, match="invalid credentials"):
        exchange.evaluate(f"c=biws,r={NONCE},p={proof}".encode())


def test_a_message_can_not_be_replayed() -> None:
    exchange = server()
    last = final(exchange.evaluate(FIRST.encode()))
    assert exchange.evaluate(last)
    with pytest.raises(AuthenticationFailedError, match="over"):
        exchange.evaluate(last)
    other = server(nonce="another")
    other.evaluate(FIRST.encode())
    with pytest.raises(AuthenticationFailedError, match="nonce"):
        other.evaluate(last)


def test_a_failed_exchange_takes_no_second_try() -> None:
    exchange = server()
    answer = exchange.evaluate(FIRST.encode())
    with pytest.raises(AuthenticationFailedError):
        exchange.evaluate(final(answer, password=b"wrong"))
    with pytest.raises(AuthenticationFailedError, match="over"):
        exchange.evaluate(final(answer))


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ("p=tls-unique,,n=user,r=x", "channel binding"),
        ("x,,n=user,r=x", "GS2"),
        ("n=user,r=x", "GS2"),
        ("", "GS2"),
        ("n,a=other,n=user,r=x", "authorization id"),
        ("n,b=user,n=user,r=x", "GS2"),
        ("n,,m=1,n=user,r=x", "must be understood"),
        ("n,,n=,r=x", "username is empty"),
        ("n,,n=us=er,r=x", "stands for nothing"),
        ("n,,n=user", "lacks"),
        ("n,,n=user,x=1", "attribute r"),
        ("n,,r=x,n=user", "attribute n"),
        ("n,,n=user,r=", "nonce"),
        ("n,,n=user,r=a b", "nonce"),
        ("n,,n=user,r=x,tokenauth=true", "tokens"),
        ("n,,n=user,r=x,7=1", "extension"),
        ("n,,n=us\0er,r=x", "NUL"),
        ("n,,n=user,r=" + "x" * 9000, "bytes"),
    ],
)
def test_first_messages_that_are_refused(first: str, why: str) -> None:
    with pytest.raises(AuthenticationFailedError, match=why):
        server().evaluate(first.encode())


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (f"c=biws,r={NONCE}", "no proof"),
        (f"c=biws,r={CLIENT_NONCE},p=AAAA", "another exchange"),
        (f"c=biws,r={NONCE}x,p=AAAA", "another exchange"),
        (f"c=eSws,r={NONCE},p=AAAA", "GS2 header is not"),
        (f"r={NONCE},c=biws,p=AAAA", "attribute c"),
        (f"c=biws,r={NONCE},p=!!", "base64"),
        (f"c=biws,r={NONCE},p=", "invalid credentials"),
        (f"c=biws,r={NONCE},p=AAAA", "invalid credentials"),
        ("c=biws,p=AAAA", "lacks"),
    ],
)
def test_last_messages_that_are_refused(last: str, why: str) -> None:
    exchange = server()
    exchange.evaluate(FIRST.encode())
    with pytest.raises(AuthenticationFailedError, match=why):
        exchange.evaluate(last.encode())
    assert not exchange.complete


def test_a_client_that_was_told_of_no_channel_binding_is_found_out() -> None:
    # "y" in the first message, "n" in what is signed: an attacker has changed the first one.
    exchange = server()
    answer = exchange.evaluate(FIRST.replace("n,,", "y,,", 1).encode())
    with pytest.raises(AuthenticationFailedError, match="GS2 header is not"):
        exchange.evaluate(final(answer))


def test_names_are_unescaped() -> None:
    exchange = server()
    exchange.evaluate(b"n,a=us=3Der=2Cx,n=us=3Der=2Cx,r=x")
    assert exchange.username == "us=er,x"


@given(message=st.binary(max_size=200), prefix=st.sampled_from([b"", b"n,,", b"n,,n=user,r="]))
def test_any_bytes_give_an_answer_or_our_error(message: bytes, prefix: bytes) -> None:
    exchange = server()
    try:
        exchange.evaluate(prefix + message)
    except AuthenticationFailedError:
        return
    with pytest.raises(AuthenticationFailedError):
        exchange.evaluate(message)


@given(password=st.binary(min_size=1, max_size=20), nonce=st.text("abc!~", min_size=1, max_size=9))
def test_a_client_that_knows_the_password_gets_in(password: bytes, nonce: str) -> None:
    exchange = server(credential(password=password), nonce)
    answer = exchange.evaluate(FIRST.encode())
    assert exchange.evaluate(final(answer, password=password)).startswith(b"v=")
    assert exchange.complete


def test_a_password_sent_in_clear_is_checked_by_the_same_credential() -> None:
    assert has_password(CREDENTIAL, b"pencil")
    assert not has_password(CREDENTIAL, b"Pencil")
    assert "stored" not in repr(CREDENTIAL)
    assert CREDENTIAL.stored_key.hex() not in repr(CREDENTIAL)


def test_proofs_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[object] = []
    monkeypatch.setattr(
        hmac, "compare_digest", lambda one, other: compared.append(other) or one == other
    )
    exchange = server()
    exchange.evaluate(final(exchange.evaluate(FIRST.encode())))
    assert exchange.complete
    assert CREDENTIAL.stored_key in compared
