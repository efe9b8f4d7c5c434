"""The server's side of one SCRAM exchange: two messages in, two out. Pure.

A user that doesn't exist gets a salt, too, always the same one, and is refused only where a wrong
password is. So the answers don't say which users there are, where credentials are as those that
`penstock user create` makes by default: other iterations, or a salt of another length, do.
"""

import hashlib
import hmac
from collections.abc import Callable
from typing import Final

from penstock.security.errors import AuthenticationFailedError
from penstock.security.scram import messages
from penstock.security.scram.credential import ITERATIONS_MIN, ScramCredential, ScramMechanism

INVALID: Final = "invalid credentials"
TOKEN_EXTENSION: Final = "tokenauth"  # noqa: S105 - the extension's name


class ScramServer:
    """One exchange; a further message after its end is refused, so that none can be replayed.

    Args:
        nonce: the server's part, drawn for this exchange alone.
        find: returns a user's credential; None if the user doesn't exist.
        pepper: secret bytes of this process, of which the salts of unknown users are made.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        *,
        nonce: str,
        find: Callable[[str], ScramCredential | None],
        pepper: bytes,
    ) -> None:
        self._mechanism = mechanism
        self._server_nonce = nonce
        self._find = find
        self._pepper = pepper
        self._first: messages.ClientFirst | None = None
        self._server_first = ""
        self._nonce = ""
        self._credential: ScramCredential | None = None
        self._over = False
        self.username = ""
        """The user that the first message names."""
        self.complete = False
        """Whether the client has proven to be `username`."""

    def evaluate(self, message: bytes) -> bytes:
        """Take the client's next message and return the answer.

        Raises:
            AuthenticationFailedError: the client isn't who it says, or its message is malformed.
        """
        if self._over:
            raise AuthenticationFailedError("the exchange is over")
        if self._first is None:
            try:
                return self._begin(messages.parse_client_first(message))
            except AuthenticationFailedError:
                self._over = True
                raise
        self._over = True
        return self._finish(self._first, messages.parse_client_final(message))

    def _begin(self, first: messages.ClientFirst) -> bytes:
        if first.authzid and first.authzid != first.username:
            raise AuthenticationFailedError(
                "the client asks for another authorization id than its username"
            )
        if TOKEN_EXTENSION in first.extensions:
            raise AuthenticationFailedError("delegation tokens are not served")
        self._first = first
        self.username = first.username
        self._nonce = first.nonce + self._server_nonce
        self._credential = self._find(first.username)
        if self._credential is None:
            salt, iterations = self._salt_of_unknown(first.username), ITERATIONS_MIN
        else:
            salt, iterations = self._credential.salt, self._credential.iterations
        self._server_first = messages.server_first(
            nonce=self._nonce, salt=salt, iterations=iterations
        )
        return self._server_first.encode()

    def _finish(self, first: messages.ClientFirst, final: messages.ClientFinal) -> bytes:
        if not hmac.compare_digest(final.nonce.encode(), self._nonce.encode()):
            raise AuthenticationFailedError("the nonce is another exchange's")
        if not hmac.compare_digest(final.channel_binding, first.gs2_header.encode()):
            raise AuthenticationFailedError("the GS2 header is not the first message's")
        hash_name = self._mechanism.hash_name
        signed = f"{first.bare},{self._server_first},{final.without_proof}".encode()
        credential = self._credential
        stored_key = (
            bytes(self._mechanism.key_bytes) if credential is None else (credential.stored_key)
        )
        signature = hmac.digest(stored_key, signed, hash_name)
        proof = final.proof
        if len(proof) != len(signature):
            raise AuthenticationFailedError(INVALID)
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.new(hash_name, client_key).digest(), stored_key)
        if credential is None or not is_right:
            raise AuthenticationFailedError(INVALID)
        self.complete = True
        return messages.server_final(hmac.digest(credential.server_key, signed, hash_name)).encode()

    def _salt_of_unknown(self, username: str) -> bytes:
        return hmac.digest(self._pepper, username.encode(), self._mechanism.hash_name)[:16]
