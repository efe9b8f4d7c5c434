"""A socket to a listener of TLS or SASL: its handshakes, made by the client."""

import secrets
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from penstock.cli.client.errors import check
from penstock.cli.client.security import ClientSecurity
from penstock.config.addresses import Address
from penstock.kafka.wire.schema import build
from penstock.model.errors import InvalidRequestError
from penstock.security.errors import AuthenticationFailedError
from penstock.security.sasl.exchanges import PLAIN
from penstock.security.scram.client import ScramClient
from penstock.security.scram.credential import BY_SASL_NAME

NONCE_BYTES: Final = 24
Request = Callable[[str, Callable[[Any], Any]], Any]
"""`Connection.request`."""


def encrypted(plain: socket.socket, address: Address, security: ClientSecurity) -> socket.socket:
    """Shake hands by TLS.

    Raises:
        InvalidRequestError: the server's certificate isn't trusted, or a file is wrong.
        OSError: the handshake fails otherwise.
    """
    try:
        context = ssl.create_default_context(cafile=security.ca or None)
        if security.certificate:
            context.load_cert_chain(security.certificate, security.key or None)
    except OSError as error:
        files = ", ".join(filter(None, (security.ca, security.certificate, security.key)))
        raise InvalidRequestError("load certificates", files, str(error)) from error
    context.check_hostname = security.identification == "https"
    try:
        return context.wrap_socket(plain, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        raise InvalidRequestError(
            "connect",
            str(address),
            f"its certificate is not trusted: {error.verify_message}",
            "ssl.ca.location names the authorities that are trusted",
        ) from error


def authenticate(request: Request, address: Address, security: ClientSecurity) -> None:
    """Say who the client is by SASL.

    Raises:
        InvalidRequestError: the mechanism is not enabled, or the server isn't who it says.
        RefusedError: the server refuses the client.
    """
    subject = f"{security.user} at {address}"
    handshake = request(
        "sasl_handshake",
        lambda types: build(types.SaslHandshakeRequest, mechanism=security.mechanism),
    )
    check(
        "authenticate",
        subject,
        handshake.error_code,
        f"{security.mechanism} is not enabled, but {', '.join(handshake.mechanisms)}"
        if handshake.error_code
        else None,
    )

    def exchange(message: bytes) -> bytes:
        answer = request(
            "sasl_authenticate",
            lambda types: build(types.SaslAuthenticateRequest, auth_bytes=message),
        )
        check("authenticate", subject, answer.error_code, answer.error_message)
        return bytes(answer.auth_bytes)

    if security.mechanism == PLAIN:
        exchange(b"\0".join((b"", security.user.encode(), security.password.encode())))
        return
    scram = ScramClient(
        BY_SASL_NAME[security.mechanism],
        security.user,
        security.password.encode(),
        nonce=secrets.token_urlsafe(NONCE_BYTES),
    )
    try:
        scram.verify(exchange(scram.final(exchange(scram.first()))))
    except AuthenticationFailedError as error:
        raise InvalidRequestError("authenticate", subject, error.detail) from error
