"""The client's side of one SCRAM exchange: RFC 5802, section 3. Pure."""

import base64
import binascii
import hashlib
import hmac
from typing import Final

from penstock.security.errors import AuthenticationFailedError
from penstock.security.scram.credential import ITERATIONS_MAX, ScramMechanism, salt_password

_GS2_HEADER: Final = "n,,"


class ScramClient:
    """Call `first`, then `final` with the server's answer, then `verify` with the last one.

    Args:
        nonce: drawn for this exchange alone.
    """

    def __init__(
        self, mechanism: ScramMechanism, user: str, password: bytes, *, nonce: str
    ) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={nonce}"
        self._verifier = b""

    def first(self) -> bytes:
        """Return the first message."""
        return f"{_GS2_HEADER}{self._bare}".encode()

    def final(self, answer: bytes) -> bytes:
        """Return the last message. Takes milliseconds.

        Raises:
            AuthenticationFailedError: the answer isn't one of SCRAM, or asks for more work than
                servers may.
        """
        text = answer.decode(errors="replace")
        fields = _fields(text)
        nonce = fields.get("r", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationFailedError("the server's nonce is another exchange's")
        try:
            salt = base64.b64decode(fields.get("s", ""), validate=True)
            iterations = int(fields.get("i", ""))
        except (binascii.Error, ValueError):
            raise AuthenticationFailedError("the server's first message is malformed") from None
        if not salt or not 0 < iterations <= ITERATIONS_MAX:
            raise AuthenticationFailedError(
                f"the server asks for {iterations} iterations, at most {ITERATIONS_MAX} are made"
            )
        hash_name = self._mechanism.hash_name
        salted = salt_password(self._mechanism, self._password, salt=salt, iterations=iterations)
        binding = base64.b64encode(_GS2_HEADER.encode()).decode()
        without_proof = f"c={binding},r={nonce}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        client_key = hmac.digest(salted, b"Client Key", hash_name)
        signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", hash_name)
        self._verifier = hmac.digest(server_key, signed, hash_name)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, answer: bytes) -> None:
        """Check that the server knows the user's credential, too.

        Raises:
            AuthenticationFailedError: it doesn't.
        """
        given = _fields(answer.decode(errors="replace")).get("v", "")
        expected = base64.b64encode(self._verifier).decode()
        if not self._verifier or not hmac.compare_digest(given.encode(), expected.encode()):
            raise AuthenticationFailedError("the server doesn't know the user's credential")


def _fields(text: str) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in text.split(","))
