"""SaslHandshake 0 to 1: a client names its mechanism, on a listener of SASL (docs/security.md).

After version 0 the client's messages come without headers, as in Kafka before 1.0.
A listener without SASL answers ILLEGAL_SASL_STATE, and so does one whose client is authenticated
and has no session that would end.
"""

from typing import TYPE_CHECKING

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.schema import build, response_types
from penstock.security.errors import AuthenticationFailedError

if TYPE_CHECKING:
    from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest


async def handle(context: RequestContext, request: "SaslHandshakeRequest") -> Answer:
    """Begin the mechanism's exchange, or name those that are enabled."""
    types = response_types("sasl_handshake", context.api_version)
    session = context.connection.session
    if session is None or not session.takes_handshake():
        return build(
            types.SaslHandshakeResponse, error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=()
        )
    error = ErrorCode.NONE
    if not session.begin(request.mechanism, without_headers=context.api_version == 0):
        error = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        context.connection.end(
            AuthenticationFailedError(f"mechanism {request.mechanism[:40]!r} is not enabled")
        )
    return build(types.SaslHandshakeResponse, error_code=error, mechanisms=session.mechanisms)
