"""SaslAuthenticate 0 to 2: a message of the mechanism that was agreed on (KIP-152, KIP-368).

A failure is answered after a delay, without a word about what was wrong, and ends the connection.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.schema import build, response_types
from penstock.model.errors import OverloadedError
from penstock.security.errors import AuthenticationFailedError
from penstock.system.waiting import wait

if TYPE_CHECKING:
    from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest

    from penstock.security.sasl.session import SaslSession

_NO_LIFETIME: Final = timedelta(0)


async def handle(context: RequestContext, request: "SaslAuthenticateRequest") -> Answer:
    """Take the message."""
    types = response_types("sasl_authenticate", context.api_version)
    session = context.connection.session
    error, message, answer, lifetime = ErrorCode.NONE, None, b"", _NO_LIFETIME
    if session is None or not session.is_authenticating:
        error = ErrorCode.ILLEGAL_SASL_STATE
        message = "SaslAuthenticate request received after successful authentication"
    else:
        try:
            answer, lifetime_ms = await take(context, session, request.auth_bytes)
            lifetime = timedelta(milliseconds=lifetime_ms)
        except AuthenticationFailedError as refused:
            error = ErrorCode.SASL_AUTHENTICATION_FAILED
            message = (
                "Authentication failed during authentication due to invalid credentials with SASL "
                f"mechanism {session.mechanism}"
            )
            context.connection.end(refused)
    return build(
        types.SaslAuthenticateResponse,
        error_code=error,
        error_message=message,
        auth_bytes=answer,
        session_lifetime=lifetime,
    )


async def take(
    context: RequestContext, session: "SaslSession", message: bytes
) -> tuple[bytes, int]:
    """Take a message; the answer, and the session's lifetime in ms.

    Raises:
        AuthenticationFailedError: the client failed. It is raised after the delay.
    """
    authenticator = context.broker.authenticator
    assert authenticator is not None
    try:
        answer, lifetime_ms = await authenticator.take(session, message, context.client_host)
    except (AuthenticationFailedError, OverloadedError) as error:
        if context.broker.audit is not None:
            context.broker.audit.refused("kafka", context.client_host, "SaslAuthenticate")
        context.broker.instruments.count("failed_authentications")
        await wait(authenticator.failure_delay_s)
        if isinstance(error, OverloadedError):
            raise AuthenticationFailedError(str(error)) from error
        raise
    if session.is_authenticated and not session.is_authenticating:
        context.broker.instruments.count("authentications")
        context.connection.authenticated(session.principal)
    return answer, lifetime_ms
