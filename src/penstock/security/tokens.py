"""Tokens of OAUTHBEARER: JSON Web Tokens, signed by keys of a file (RFC 7519, RFC 7517).

What is taken is pinned by settings: algorithms, issuer, audience. A token says neither where its
key is nor how it is to be checked: of its header the key's id alone is looked at, and the
algorithm, which must be one of those that are pinned and the one that the key is for.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.model.errors import InvalidRequestError, NotFoundError, PenstockError
from penstock.security.errors import AuthenticationFailedError
from penstock.security.sasl.oauthbearer import Token
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

JWKS_BYTES_MAX: Final = 1 << 20
_LAST_S: Final = 253_402_300_799
"""The last second of the year 9999."""
_KEY_TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """A token must fulfil these. `user_claim`: the claim that is the user's name."""

    issuer: str
    audiences: tuple[str, ...]
    algorithms: tuple[str, ...]
    user_claim: str = "sub"
    skew_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Key:
    """A public key of the file. `algorithm` "": those of its type."""

    key_id: str | None
    key_type: str
    algorithm: str
    public_key: Any


class Tokens:
    """Checks tokens. `look` is for a thread; `check` for the event loop.

    Args:
        now_ms: returns the time of the wall clock.
    """

    def __init__(self, jwks: Path, rules: TokenRules, *, now_ms: Callable[[], int]) -> None:
        """Load the keys.

        Raises:
            NotFoundError: the file doesn't exist, or PyJWT is not installed.
            InvalidRequestError: the file isn't a JWKS.
        """
        self._path = jwks
        self._rules = rules
        self._now_ms = now_ms
        self._jwt = _import_jwt()
        self._seen = _state(jwks)
        self._keys = self._load()

    def look(self) -> None:
        """Load the keys again if the file has changed."""
        try:
            found = _state(self._path)
            if found == self._seen:
                return
            self._keys = self._load()
        except PenstockError as error:
            heard(Cause.LOAD_JWKS, error, logger, "keeping the keys that are in use")
            return
        self._seen = found
        logger.info("tokens are checked with the %d keys of %s", len(self._keys), self._path)

    def check(self, text: str) -> Token:
        """Check a token.

        Raises:
            AuthenticationFailedError: the token isn't right.
        """
        jwt, rules = self._jwt, self._rules
        try:
            header = jwt.get_unverified_header(text)
            key = self._key(header)
            claims: Mapping[str, Any] = jwt.decode(
                text,
                key.public_key,
                algorithms=[header["alg"]],
                issuer=rules.issuer,
                audience=list(rules.audiences),
                options={
                    "require": ["exp", "iss", "aud", rules.user_claim],
                    # By the server's clock, below.
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.PyJWTError as error:
            raise AuthenticationFailedError(f"token: {_reason(error)}") from None
        return self._in_time(claims)

    def _in_time(self, claims: Mapping[str, Any]) -> Token:
        now_s, skew_s = self._now_ms() / 1000, self._rules.skew_s
        expires_s = _number(claims, "exp")
        if now_s >= expires_s + skew_s:
            raise AuthenticationFailedError(f"token: it expired {now_s - expires_s:.0f} s ago")
        for name in ("nbf", "iat"):
            if name in claims and _number(claims, name) > now_s + skew_s:
                raise AuthenticationFailedError(f"token: {name} is in the future")
        user = claims[self._rules.user_claim]
        if not isinstance(user, str) or not user:
            raise AuthenticationFailedError(f"token: {self._rules.user_claim} isn't a name")
        return Token(user, int(expires_s * 1000))

    def _key(self, header: Mapping[str, Any]) -> Key:
        algorithm = header.get("alg")
        if algorithm not in self._rules.algorithms:
            raise AuthenticationFailedError(f"token: algorithm {algorithm!r} is not taken"[:120])
        key_type = _KEY_TYPES[algorithm[:2]]
        wanted = header.get("kid")
        found = [
            key
            for key in self._keys
            if key.key_type == key_type
            and (wanted is None or key.key_id == wanted)
            and key.algorithm in {"", algorithm}
        ]
        if len(found) != 1:
            raise AuthenticationFailedError(f"token: {len(found)} keys fit its header")
        return found[0]

    def _load(self) -> Sequence[Key]:
        try:
            text = self._path.read_bytes()
            if len(text) > JWKS_BYTES_MAX:
                raise self._unusable(f"{len(text)} bytes, at most {JWKS_BYTES_MAX} are read")
            rows = json.loads(text)["keys"]
            keys = [
                Key(row.get("kid"), row["kty"], row.get("alg", ""), self._jwt.PyJWK(row).key)
                for row in rows
                # Symmetric keys are left out: who can check with one can sign with it.
                if row.get("kty") in _KEY_TYPES.values() and row.get("use", "sig") == "sig"
            ]
        except OSError as error:
            raise _missing(self._path, error) from error
        except (ValueError, KeyError, TypeError, AttributeError, self._jwt.PyJWTError) as error:
            raise self._unusable(f"not a JWKS: {type(error).__name__}") from error
        if not keys:
            raise self._unusable("it has no public key")
        return keys

    def _unusable(self, detail: str) -> InvalidRequestError:
        return InvalidRequestError("load keys", str(self._path), detail)


def _import_jwt() -> Any:
    try:
        import jwt
        import jwt.algorithms
    except ImportError as error:
        raise _not_installed(error) from error
    if not jwt.algorithms.has_crypto:
        raise _not_installed(None)
    return jwt


def _not_installed(error: ImportError | None) -> NotFoundError:
    return NotFoundError(
        "import",
        "PyJWT",
        f"OAUTHBEARER needs it with cryptography: {error or 'cryptography is missing'}",
        "pip install 'penstock[oauth]'",
    )


def _number(claims: Mapping[str, Any], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise AuthenticationFailedError(f"token: {name} isn't a number")
    # Python reads NaN, which is before no time and after none.
    if not 0 <= value <= _LAST_S:
        raise AuthenticationFailedError(f"token: {name} isn't a time")
    return float(value)


def _reason(error: Exception) -> str:
    """Return the kind of an error: its text may quote the token."""
    return type(error).__name__


def _state(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise _missing(path, error) from error
    return found.st_mtime_ns, found.st_size, found.st_ino


def _missing(path: Path, error: OSError) -> NotFoundError:
    return NotFoundError("read", str(path), error.strerror or "it can't be read")
