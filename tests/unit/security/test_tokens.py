"""Tokens of OAUTHBEARER: what is pinned holds, and what attackers and broken issuers send fails."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

jwt = pytest.importorskip("jwt")

from cryptography.hazmat.primitives import serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec, rsa  # noqa: E402

from penstock.model.errors import InvalidRequestError, NotFoundError  # noqa: E402
from penstock.security.errors import AuthenticationFailedError  # noqa: E402
from penstock.security.tokens import TokenRules, Tokens  # noqa: E402

NOW_S = 1_700_000_000
SKEW_S = 30
RULES = TokenRules(
    issuer="https://issuer.example",
    audiences=("penstock", "log"),
    algorithms=("RS256", "ES256"),
    skew_s=SKEW_S,
)
CLAIMS = {
    "iss": "https://issuer.example",
    "aud": "penstock",
    "sub": "alice",
    "exp": NOW_S + 600,
    "iat": NOW_S,
}
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def public(key: Any, kid: str, **more: str) -> dict[str, Any]:
    """A key's row in a JWKS."""
    algorithm = jwt.algorithms.get_default_algorithms()["RS256" if key is not EC_KEY else "ES256"]
    return json.loads(algorithm.to_jwk(key.public_key())) | {"kid": kid} | more


KEYS = [public(RSA_KEY, "rsa"), public(EC_KEY, "ec")]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def run(*rows: dict[str, Any]) -> Path:
        path = tmp_path / "jwks.json"
        path.write_text(json.dumps({"keys": rows or KEYS}))
        return path

    return run


@pytest.fixture
def tokens(write: Callable[..., Path]) -> Tokens:
    return Tokens(write(), RULES, now_ms=lambda: NOW_S * 1000)


def signed(key: Any = RSA_KEY, algorithm: str = "RS256", kid: str = "rsa", **claims: Any) -> str:
    """A token; claims that are None are left out."""
    kept = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
    return str(jwt.encode(kept, key, algorithm=algorithm, headers={"kid": kid}))


def part(value: object) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def refusal(tokens: Tokens, token: str) -> str:
    with pytest.raises(AuthenticationFailedError) as raised:
        tokens.check(token)
    assert token not in str(raised.value)
    return str(raised.value.detail)


def test_a_right_token_names_its_user_and_its_end(tokens: Tokens) -> None:
    assert tokens.check(signed()) == ("alice", (NOW_S + 600) * 1000)
    assert tokens.check(signed(EC_KEY, "ES256", "ec", aud=["x", "log"])).user == "alice"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"iss": "https://other.example"}, "InvalidIssuerError"),
        ({"iss": None}, "MissingRequiredClaimError"),
        ({"aud": "other"}, "InvalidAudienceError"),
        ({"aud": None}, "MissingRequiredClaimError"),
        ({"exp": None}, "MissingRequiredClaimError"),
        ({"sub": None}, "MissingRequiredClaimError"),
        ({"sub": ""}, "sub isn't a name"),
        ({"exp": NOW_S - SKEW_S}, "it expired 30 s ago"),
        ({"exp": 0}, "it expired"),
        ({"exp": float("nan")}, "exp isn't a time"),
        ({"exp": float("inf")}, "exp isn't a time"),
        ({"exp": -1}, "exp isn't a time"),
        ({"exp": 1 << 80}, "exp isn't a time"),
        ({"exp": "9999999999"}, "exp isn't a number"),
        ({"exp": True}, "exp isn't a number"),
        ({"nbf": NOW_S + SKEW_S + 1}, "nbf is in the future"),
        ({"iat": NOW_S + SKEW_S + 1}, "iat is in the future"),
    ],
)
def test_a_token_must_fulfil_the_rules(tokens: Tokens, claims: Any, reason: str) -> None:
    assert reason in refusal(tokens, signed(**claims))


def test_clocks_may_differ_by_the_skew(tokens: Tokens) -> None:
    assert tokens.check(signed(exp=NOW_S - SKEW_S + 1))
    assert tokens.check(signed(nbf=NOW_S + SKEW_S, iat=NOW_S + SKEW_S))


def test_an_unsigned_token_is_refused(tokens: Tokens) -> None:
    for algorithm in ("none", "None", "NONE", "", None):
        header = {"alg": algorithm, "kid": "rsa", "typ": "JWT"}
        for signature in ("", part(b"x")):
            refusal(tokens, f"{part(header)}.{part(CLAIMS)}.{signature}")
    unsigned = f"{part({'alg': 'RS256', 'kid': 'rsa'})}.{part(CLAIMS)}."
    assert "InvalidSignatureError" in refusal(tokens, unsigned)


def test_a_public_key_is_not_a_secret_that_signs(tokens: Tokens) -> None:
    """Key confusion: HMAC with the public key, which everybody has."""
    pem = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for algorithm, hash_name in (("HS256", "sha256"), ("RS256", "sha256")):
        text = f"{part({'alg': algorithm, 'kid': 'rsa'})}.{part(CLAIMS)}"
        signature = hmac.digest(pem, text.encode(), hash_name)
        refusal(tokens, f"{text}.{part(signature)}")


def test_a_token_brings_no_key_of_its_own(tokens: Tokens) -> None:
    row = public(OTHER_RSA_KEY, "rsa")
    for header in ({"jwk": row}, {"jku": "https://evil.example/jwks"}, {"x5c": ["AAAA"]}):
        text = jwt.encode(
            CLAIMS, OTHER_RSA_KEY, algorithm="RS256", headers={"kid": "rsa", **header}
        )
        assert "InvalidSignatureError" in refusal(tokens, text)


def test_another_key_or_algorithm_than_the_pinned_one_is_refused(tokens: Tokens) -> None:
    assert "0 keys fit" in refusal(tokens, signed(kid="unknown"))
    assert "0 keys fit" in refusal(tokens, signed(kid="ec"))
    assert "algorithm 'PS256' is not taken" in refusal(tokens, signed(algorithm="PS256"))
    assert "algorithm 'RS384' is not taken" in refusal(tokens, signed(algorithm="RS384"))


def test_a_changed_token_is_refused(tokens: Tokens) -> None:
    header, _, signature = signed().split(".")
    forged = f"{header}.{part(CLAIMS | {'sub': 'root'})}.{signature}"
    assert "InvalidSignatureError" in refusal(tokens, forged)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a",
        "a.b.c",
        "..",
        "\0.\0.\0",
        "ä.ö.ü",
        part(b"[" * 40_000) + ".e30.",
        part(b'{"alg":"RS256","x":' + b"[" * 40_000) + ".e30.",
        part({"alg": ["RS256"]}) + ".e30.",
        part({"alg": "RS256", "kid": {"a": 1}}) + ".e30.",
        part({"alg": "RS256", "kid": "rsa", "crit": ["b64"], "b64": False}) + ".e30.AAAA",
        part([1]) + ".e30.",
        part({"alg": "RS256", "kid": "rsa"}) + "." + part(b"[" * 40_000) + ".AAAA",
    ],
)
def test_what_is_no_token_is_refused(tokens: Tokens, token: str) -> None:
    with pytest.raises(AuthenticationFailedError):
        tokens.check(token)


def test_keys_follow_the_file(
    tokens: Tokens, write: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = write(public(OTHER_RSA_KEY, "rsa"))
    os.utime(path, (1, 1))
    refusal(tokens, signed(OTHER_RSA_KEY))
    tokens.look()
    assert tokens.check(signed(OTHER_RSA_KEY)).user == "alice"
    refusal(tokens, signed())
    path.write_text("{")
    tokens.look()
    assert "keeping the keys that are in use" in caplog.text
    path.unlink()
    tokens.look()
    assert tokens.check(signed(OTHER_RSA_KEY)).user == "alice"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"keys": 1}', '{"keys": []}', '{"keys": [{}]}', '{"keys": [[]]}']
)
def test_a_file_that_is_no_jwks_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "jwks.json"
    with pytest.raises(NotFoundError):
        Tokens(path, RULES, now_ms=lambda: 0)
    path.write_text(text)
    with pytest.raises(InvalidRequestError):
        Tokens(path, RULES, now_ms=lambda: 0)


def test_a_symmetric_key_or_one_that_encrypts_is_left_out(write: Callable[..., Path]) -> None:
    secret = hashlib.sha256(b"secret").digest()
    symmetric = {"kty": "oct", "k": part(secret), "kid": "oct"}
    with pytest.raises(InvalidRequestError, match="no public key"):
        Tokens(write(symmetric), RULES, now_ms=lambda: 0)
    rows = (symmetric, public(RSA_KEY, "rsa", use="enc"), public(EC_KEY, "ec"))
    found = Tokens(write(*rows), RULES, now_ms=lambda: NOW_S * 1000)
    assert "0 keys fit" in refusal(found, signed())
    assert found.check(signed(EC_KEY, "ES256", "ec"))
